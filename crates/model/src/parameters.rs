//! Access to a model's parameters by name, such as `blocks.0.attention.qkv.weight`: reading them into host memory, and
//! assigning new values.

use std::collections::BTreeMap;
use std::io;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};

use super::{Gpt, LazyTensor};

/// The two methods with which a module visitor or mapper keeps track of the current path in its field `$path`.
#[macro_export]
macro_rules! follow_path {
    ($path:tt) => {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.$path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.$path.pop();
        }
    };
}
pub use follow_path;

/// A tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTensor {
    /// The sizes of the dimensions.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl HostTensor {
    /// The vector `[N]` at position `t` in a tensor `[1, T, N]`, or at position `t` of head `h` in `[1, H, T, N]`.
    ///
    /// # Panics
    /// If `t` or `h` is out of range.
    pub fn vector(&self, h: usize, t: usize) -> &[f32] {
        let [.., n_rows, n] = self.shape[..] else { panic!("at least two dimensions") };
        let start = (h * n_rows + t) * n;
        &self.values[start..start + n]
    }

    /// The transpose of a matrix.
    ///
    /// # Panics
    /// If it has other than two dimensions.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let [n_rows, n_columns] = self.shape[..] else { panic!("a matrix has two dimensions") };
        let column = |column: usize| (0..n_rows).map(move |row| self.values[row * n_columns + column]);
        Self { shape: vec![n_columns, n_rows], values: (0..n_columns).flat_map(column).collect() }
    }

    /// Copies the tensor to a device.
    ///
    /// # Panics
    /// If the tensor does not have D dimensions.
    pub fn to_device<const D: usize>(&self, device: &Device) -> Tensor<D> {
        Tensor::from_data(TensorData::new(self.values.clone(), self.shape.clone()), device)
    }
}

/// Why a parameter cannot be assigned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "each message says what the fields are")]
pub enum AssignError {
    #[error("there is no `{0}`, which the model needs")]
    Missing(String),
    #[error("`{path}` has the shape {found:?}, and the model needs {expected:?}")]
    Shape { path: String, expected: Vec<usize>, found: Vec<usize> },
}

/// All parameters of `module` by name, still on the device.
pub fn lazy<M: Module>(module: &M) -> BTreeMap<String, LazyTensor> {
    struct Lister(Vec<String>, BTreeMap<String, LazyTensor>);
    impl ModuleVisitor for Lister {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.insert(self.0.join("."), LazyTensor::on_device(param.val()));
        }
        follow_path!(0);
    }
    let mut lister = Lister(Vec::new(), BTreeMap::new());
    module.visit(&mut lister);
    lister.1
}

/// All parameters of `module` by name, read into host memory.
///
/// # Panics
/// If the device fails.
pub fn read<M: Module>(module: &M) -> BTreeMap<String, HostTensor> {
    to_host(&lazy(module)).expect("the module's device works")
}

/// Reads tensors into host memory.
///
/// # Errors
/// For the reasons of [`LazyTensor::read`].
pub fn to_host(tensors: &BTreeMap<String, LazyTensor>) -> io::Result<BTreeMap<String, HostTensor>> {
    tensors.iter().map(|(name, tensor)| Ok((name.clone(), tensor.read()?))).collect()
}

/// The names and shapes of all parameters of `module`.
pub fn shapes<M: Module>(module: &M) -> BTreeMap<String, Vec<usize>> {
    lazy(module).into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect()
}

/// Replaces each parameter of the model with the tensor that `value` returns for its name and shape.
///
/// # Errors
/// If a value is missing or has another shape.
pub fn assign(model: Gpt, value: impl FnMut(&str, &[usize]) -> Option<HostTensor>) -> Result<Gpt, AssignError> {
    struct Assigner<F>(Vec<String>, F, Option<AssignError>);
    impl<F: FnMut(&str, &[usize]) -> Option<HostTensor>> ModuleMapper for Assigner<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (path, expected) = (self.0.join("."), param.shape().to_vec());
            let Some(HostTensor { shape, values }) = (self.1)(&path, &expected) else {
                self.2.get_or_insert(AssignError::Missing(path));
                return param;
            };
            if shape != expected {
                self.2.get_or_insert(AssignError::Shape { path, expected, found: shape });
                return param;
            }
            param.map(|old| {
                let new = Tensor::from_data(TensorData::new(values, shape), &old.device());
                new.set_require_grad(old.is_require_grad())
            })
        }
        follow_path!(0);
    }
    let mut assigner = Assigner(Vec::new(), value, None);
    let model = model.map(&mut assigner);
    assigner.2.map_or(Ok(model), Err)
}
