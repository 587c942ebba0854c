//! Which CPU backend a device belongs to.

use burn::tensor::Device;

/// Whether `device`, with or without gradients, is burn's flex backend.
pub(crate) fn is_flex(device: &Device) -> bool {
    *device == Device::flex()
}

/// Whether `device`, with or without gradients, computes on the CPU.
pub(crate) fn is_cpu(device: &Device) -> bool {
    #[cfg(feature = "ndarray")]
    #[allow(deprecated, reason = "kept as a numerical second opinion until burn drops it")]
    if *device == Device::ndarray() {
        return true;
    }
    is_flex(device)
}
