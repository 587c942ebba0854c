//! Models of every family, made and computed by transformers: `scripts/fixtures/families.py`.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};
use tinderbox::generate::engine::{Decoder, Engine, Precision};
use tinderbox::interop::layout::ForeignTensor;
use tinderbox::interop::{ForeignModel, convert};
use tinderbox::model::parameters;
use tinderbox::model::probe::{Probe, Site};
use tinderbox::model::{Gpt, LazyTensor};

use crate::devices::ndarray;
use crate::fixtures::{Fixture, TOLERANCE, expect_close, families, fixture, host};
use crate::parity::checked_gradients;

/// The model in a folder, and the results of transformers for it.
fn open(name: &str, device: &Device) -> (ForeignModel, Gpt, Fixture) {
    let source = ForeignModel::open(&fixture(name)).expect("a model");
    let mut ours = source.parameters().expect("all its tensors");
    let gpt = Gpt::zeros(&source.config, source.vocab_size(), device);
    let gpt = parameters::assign(gpt, |path, _| ours.remove(path)?.read().ok()).expect("all our parameters");
    (source, gpt, Fixture::read(&format!("families/{name}/reference")))
}

/// Compares logits, loss and each gradient with transformers, whose names and layout the gradients get.
fn check(name: &str, device: &Device) {
    let (source, gpt, fixture) = open(name, &device.clone().autodiff());
    let shapes = parameters::shapes(&gpt);
    let gradient = |(path, gradient): (&str, &Tensor<1>)| {
        let values = host(gradient.clone());
        (path.to_owned(), LazyTensor::computed(shapes[path].clone(), move |sink| sink(&values)))
    };
    let gradients: BTreeMap<_, _> = checked_gradients(&gpt, &fixture).iter().map(gradient).collect();
    assert_eq!(gradients.len(), shapes.len(), "{name}: gradients of all parameters");
    // A constant added to a parameter does not change its gradient.
    let layout: Vec<_> = source.layout().into_iter().map(|tensor| ForeignTensor { offset: 0.0, ..tensor }).collect();
    let gradients = convert::to_theirs(&layout, &gradients).expect("the gradients have a place each");
    for (theirs, gradient) in &gradients {
        let gradient = gradient.read().expect("on a device");
        let key = format!("grads.{theirs}");
        assert_eq!(gradient.shape, fixture.shape(&key), "{name}: {theirs}");
        expect_close(&format!("{name}: gradient of {theirs}"), &gradient.values, fixture.values(&key), TOLERANCE);
    }
    assert_eq!(gradients.len(), fixture.names("grads.").count(), "{name}: gradients of all tensors");
}

#[test]
fn families_equal_transformers() {
    for name in families() {
        check(&name, &Device::flex());
    }
}

#[test]
fn families_on_ndarray_equal_transformers() {
    for name in families() {
        check(&name, &ndarray());
    }
}

/// A probe on everything, for which attention materializes its weights.
struct Watch;

impl Probe for Watch {
    fn visit<const D: usize>(&mut self, _: Site, value: Tensor<D>) -> Tensor<D> {
        value
    }
}

#[test]
fn families_equal_transformers_with_probe_cache_and_engine() {
    let device = Device::flex();
    for name in families() {
        let (_, gpt, fixture) = open(&name, &device);
        let tokens = fixture.int::<2>("tokens", &device);
        fixture.expect("logits", gpt.forward_with(tokens.clone(), None, &mut Watch));

        let [n_rows, n_tokens] = tokens.dims();
        let mut cache = gpt.kv_cache(n_rows);
        let steps = (0..n_tokens).map(|at| gpt.forward_cached(tokens.clone().narrow(1, at, 1), &mut cache));
        fixture.expect("logits", Tensor::cat(steps.collect(), 1));

        let mut decoder = Decoder::new(Arc::new(Engine::new(gpt, Precision::F32)), n_rows, n_tokens);
        let ids: Vec<u32> = fixture.values("tokens").iter().map(|id| *id as u32).collect();
        let logits = fixture.values("logits");
        let n = logits.len() / ids.len();
        for at in 0..n_tokens {
            let next: Vec<_> = ids.chunks(n_tokens).map(|row| Some(row[at])).collect();
            decoder.decode(&next);
            for row in 0..n_rows {
                let expected = &logits[(row * n_tokens + at) * n..][..n];
                expect_close(&format!("{name}: token {at} of row {row}"), decoder.logits(row), expected, TOLERANCE);
            }
        }
    }
}
