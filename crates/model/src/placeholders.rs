//! The tensors of new modules, made from the parameter table: it says which parameters a module has, and their shapes.

use std::collections::BTreeMap;

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};

use crate::{Initial, Parameter, device};

/// Parameters to be initialized or loaded by name: until then norms are the identity, and all matrices zero.
pub(crate) struct Placeholders<'a> {
    rows: &'a BTreeMap<String, Parameter>,
    device: &'a Device,
    prefix: String,
}

impl Placeholders<'_> {
    pub(crate) fn make<M>(
        rows: impl IntoIterator<Item = Parameter>,
        device: &Device,
        module: impl FnOnce(&Placeholders<'_>) -> M,
    ) -> M {
        let rows = rows.into_iter().map(|row| (row.path.clone(), row)).collect();
        module(&Placeholders { rows: &rows, device, prefix: String::new() })
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..*self }
    }

    /// The parameter with this name; `None` if the table has none.
    pub(crate) fn get<const D: usize>(&self, name: &str) -> Option<Param<Tensor<D>>> {
        let row = self.rows.get(&format!("{}{name}", self.prefix))?;
        let shape: [usize; D] =
            row.shape[..].try_into().expect("the table and the module agree on the number of dimensions");
        Some(Param::from_tensor(match row.initial {
            Initial::Constant(value) => Tensor::full(shape, value, self.device),
            Initial::Normal(_) | Initial::Uniform(_) | Initial::Pair(_) => zeros(shape, self.device),
        }))
    }
}

/// On a CPU, zeros take no memory until they are overwritten; `Tensor::zeros` would write all of them, twice.
fn zeros<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    if !device::is_cpu(device) {
        return Tensor::zeros(shape, device);
    }
    let zeros = vec![0.0_f32; shape.iter().product()];
    Tensor::from_data(TensorData::new(zeros, shape), device)
}
