//! NVIDIA GPUs through CUDA, whose libraries are loaded at run time: a missing library causes a panic.

use std::panic::{self, AssertUnwindSafe};

use burn::tensor::{Device, DeviceType, Tensor};

use super::choice::{self, Adapter, AdapterKind, Api};
use super::spec::Backend;
use super::tuning;

/// The CUDA GPUs; empty without NVIDIA's driver.
pub(super) fn find() -> Vec<Adapter> {
    let count = guarded(|| Device::enumerate(DeviceType::Cuda).len()).unwrap_or(0);
    let model = model();
    let name = |index| model.clone().unwrap_or_else(|| format!("NVIDIA GPU {index}"));
    let named = (0..count).map(|index| (name(index), AdapterKind::Discrete)).collect();
    choice::number(Backend::Cuda, Api::Cuda, named)
}

/// The name of the GPUs from the driver's files, if all are the same model: CUDA names only initialized GPUs, and the
/// order of the files differs from CUDA's.
fn model() -> Option<String> {
    let mut models: Vec<String> = std::fs::read_dir("/proc/driver/nvidia/gpus")
        .ok()?
        .flatten()
        .filter_map(|gpu| std::fs::read_to_string(gpu.path().join("information")).ok())
        .filter_map(|text| Some(text.lines().find_map(|line| line.strip_prefix("Model:"))?.trim().to_owned()))
        .collect();
    models.dedup();
    let model = models.pop()?;
    models.is_empty().then_some(model)
}

/// Opens a GPU and adds two numbers on it, so that a missing compiler or library is detected here.
pub(super) fn open(adapter: &Adapter) -> Result<Device, String> {
    tuning::configure(adapter.kind);
    let device = Device::cuda(adapter.index_of_kind);
    let sum = guarded(|| Tensor::<1>::ones([1], &device).add_scalar(1.0).try_into_scalar::<f32>())?;
    match sum {
        Ok(2.0) => Ok(device),
        Ok(other) => Err(format!("it says that 1 + 1 = {other}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Runs `f`; if it panics, returns the message without printing it to standard error.
fn guarded<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let report = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    panic::set_hook(report);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("CUDA stopped without saying why").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarded_returns_message_of_panic() {
        assert_eq!(guarded(|| 1), Ok(1));
        assert_eq!(guarded(|| -> u8 { panic!("no library") }), Err("no library".to_owned()));
        assert_eq!(guarded(|| -> u8 { panic!("no {}", "driver") }), Err("no driver".to_owned()));
    }
}
