//! PyTorch's updates, step by step, from the same gradients; and what a checkpoint keeps of an optimizer.

use std::collections::BTreeMap;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use tinderbox::config::{MatmulPrecision, ModelConfig, NewtonSchulz, OptimizerConfig, OptimizerKind, ScheduleConfig};
use tinderbox::model::parameters::{self, HostTensor};
use tinderbox::model::{Gpt, Initial, LazyTensor, Parameter, Role};
use tinderbox::optimizer::{AdamwConfig, Gradients, MuonConfig, Optimizer, StateError, learning_rate};

use crate::devices::ndarray;
use crate::fixtures::{Fixture, TOLERANCE, expect_close, fs, host};

#[derive(Module, Debug)]
pub struct Matrix {
    pub weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Layer {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Scale {
    weight: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct Toy {
    embedding: Matrix,
    linear: Layer,
    norm: Scale,
}

pub fn parameter(path: String, shape: Vec<usize>, role: Role) -> Parameter {
    Parameter { path, shape, role, initial: Initial::Constant(0.0), is_trained: true }
}

#[test]
fn adamw_repeats_pytorch_updates() {
    let device = Device::flex().autodiff();
    let fixture = Fixture::read("optimizer/adamw");
    let toy = Toy {
        embedding: Matrix { weight: Param::from_tensor(fixture.float("initial.weights.embedding.weight", &device)) },
        linear: Layer {
            weight: Param::from_tensor(fixture.float("initial.weights.linear.weight", &device)),
            bias: Param::from_tensor(fixture.float("initial.weights.linear.bias", &device)),
        },
        norm: Scale { weight: Param::from_tensor(fixture.float("initial.weights.norm.weight", &device)) },
    };
    let adamw = AdamwConfig { betas: [0.9, 0.99] };
    let config = OptimizerConfig { adamw, weight_decay: 0.1, grad_clip_norm: 1.0, ..OptimizerConfig::default() };
    let rows = parameters::shapes(&toy).into_iter().map(|(path, shape)| parameter(path, shape, Role::Output));
    let mut optimizer = Optimizer::new(&config, rows, MatmulPrecision::F32);
    let mut toy = toy;
    for step in 0..8 {
        let prefix = format!("steps.{step}.grads.");
        let gradients = named(&fixture, &prefix, &Device::flex());
        let norm = gradients.squares().global_norm();
        expect_close("norm", &host(norm.clone()), &fixture.values("norms")[step..=step], TOLERANCE);
        let clipped = gradients.clip(norm, config.grad_clip_norm);
        let learning_rate = f64::from(fixture.values("learning_rates")[step]);
        toy = optimizer.step(toy, clipped, learning_rate, step);
        expect_weights(&fixture, &format!("steps.{step}.weights."), &toy);
    }
    expect_state(&fixture, &optimizer);
}

fn expect_weights(fixture: &Fixture, prefix: &str, module: &impl Module) {
    for (name, weights) in parameters::read(module) {
        let name = format!("{prefix}{name}");
        expect_close(&name, &weights.values, fixture.values(&name), 2e-6);
    }
}

fn expect_state(fixture: &Fixture, optimizer: &Optimizer) {
    let state = optimizer.state();
    assert_eq!(state.len(), fixture.names("final.").count());
    for (name, mean) in state {
        expect_close(&name, &values(&mean), fixture.values(&format!("final.{name}")), 2e-6);
    }
}

#[derive(serde::Deserialize)]
struct MuonFixture {
    model: ModelConfig,
    vocab_size: usize,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    n_steps: usize,
    hidden: BTreeMap<String, Vec<usize>>,
}

impl MuonFixture {
    fn read() -> (Self, Fixture) {
        let text = fs::read_to_string("tests/fixtures/optimizer/muon.json");
        let this = serde_json::from_str(&text).expect("a model and its optimizer");
        (this, Fixture::read("optimizer/muon"))
    }

    fn gpt(&self, fixture: &Fixture, device: &Device) -> Gpt {
        let gpt = Gpt::zeros(&self.model.clone().with_derived(), self.vocab_size, &device.clone().autodiff());
        let gpt = parameters::assign(gpt, |path, shape| {
            let values = fixture.values(&format!("initial.weights.{path}")).to_vec();
            let shape = shape.to_vec();
            Some(HostTensor { shape, values })
        });
        gpt.expect("every weight is there")
    }

    /// The clipped gradients of one step, and their norm before clipping.
    fn clipped(&self, fixture: &Fixture, step: usize, device: &Device) -> (Gradients, f32) {
        let gradients = named(fixture, &format!("steps.{step}.grads."), device);
        let norm = gradients.squares().global_norm();
        let clipped = gradients.clip(norm.clone(), self.optimizer.grad_clip_norm);
        (clipped, norm.into_scalar())
    }

    fn learning_rate(&self, step: usize) -> f64 {
        let peak = self.optimizer.learning_rate;
        learning_rate(&self.schedule, peak, step, self.n_steps)
    }
}

fn named(fixture: &Fixture, prefix: &str, device: &Device) -> Gradients {
    let flat = |name: &str| {
        let values = fixture.values(&format!("{prefix}{name}"));
        (name.to_owned(), Tensor::<1>::from_floats(values, device))
    };
    Gradients::from_named(fixture.names(prefix).map(flat).collect())
}

#[test]
fn muon_repeats_pytorch_updates() {
    check_muon(&Device::flex());
}

#[test]
fn muon_repeats_pytorch_updates_on_ndarray() {
    check_muon(&ndarray());
}

/// Compares the whole trajectory with its fixture on a device.
pub fn check_muon(device: &Device) {
    let (setup, fixture) = MuonFixture::read();
    let mut gpt = setup.gpt(&fixture, device);
    let hidden = gpt.parameters().filter_map(|row| Some((row.path.clone(), row.hidden_widths()?)));
    assert_eq!(hidden.collect::<BTreeMap<_, _>>(), setup.hidden);
    let mut optimizer = Optimizer::new(&setup.optimizer, gpt.parameters(), MatmulPrecision::F32);
    let rates: Vec<f32> = (0..setup.n_steps).map(|step| setup.learning_rate(step) as f32).collect();
    expect_close("rates", &rates, fixture.values("learning_rates"), 1e-7);
    for step in 0..setup.n_steps {
        let (gradients, norm) = setup.clipped(&fixture, step, device);
        let expected = &fixture.values("norms")[step..=step];
        expect_close("norm", &[norm], expected, TOLERANCE);
        gpt = optimizer.step(gpt, gradients, setup.learning_rate(step), step);
        expect_weights(&fixture, &format!("steps.{step}.weights."), &gpt);
    }
    expect_state(&fixture, &optimizer);
}

#[derive(Module, Debug)]
struct Matrices {
    wide: Matrix,
    tall: Matrix,
    joined: Matrix,
}

#[derive(serde::Deserialize)]
struct Relatives {
    optimizer: OptimizerConfig,
    cases: BTreeMap<String, Options>,
    n_steps: usize,
    hidden: BTreeMap<String, Vec<usize>>,
}

#[derive(serde::Deserialize)]
struct Options {
    newton_schulz: NewtonSchulz,
    normuon_beta2: f64,
    ema_decay: f64,
}

#[test]
fn muon_variants_repeat_reference_updates() {
    let text = fs::read_to_string("tests/fixtures/optimizer/muon_relatives.json");
    let Relatives { optimizer, cases, n_steps, hidden } =
        serde_json::from_str(&text).expect("the fixture has settings");
    let fixture = Fixture::read("optimizer/muon_relatives");
    for (case, device) in cases.keys().flat_map(|case| [(case, Device::flex()), (case, ndarray())]) {
        let Options { newton_schulz, normuon_beta2, ema_decay } = cases[case];
        let muon = MuonConfig { newton_schulz, normuon_beta2, ..optimizer.muon.clone() };
        let config = OptimizerConfig { muon, ema_decay, ..optimizer.clone() };
        let initial = |name: &str| Matrix {
            weight: Param::from_tensor(
                fixture.float(&format!("initial.weights.{name}.weight"), &device.clone().autodiff()),
            ),
        };
        let mut matrices = Matrices { wide: initial("wide"), tall: initial("tall"), joined: initial("joined") };
        let rows = || {
            let row = |(path, shape): (String, Vec<usize>)| {
                let role = hidden[&path][..].try_into().map_or(Role::Up, Role::Qkv);
                parameter(path, shape, role)
            };
            parameters::shapes(&matrices).into_iter().map(row).collect::<Vec<_>>()
        };
        let [mut optimizer, mut restored] = [(); 2].map(|()| Optimizer::new(&config, rows(), MatmulPrecision::F32));
        for step in 0..n_steps {
            let gradients = named(&fixture, &format!("steps.{step}.grads."), &device);
            matrices = optimizer.step(matrices, gradients, config.learning_rate, step);
            expect_weights(&fixture, &format!("{case}.steps.{step}.weights."), &matrices);
        }
        let evaluated = match ema_decay > 0.0 {
            true => format!("{case}.final.average."),
            false => format!("{case}.steps.{}.weights.", n_steps - 1),
        };
        expect_weights(&fixture, &evaluated, &optimizer.averaged(matrices.valid()));
        let state = optimizer.state();
        let n_of_each = if normuon_beta2 > 0.0 { 2 } else { 1 };
        assert_eq!(state.len(), n_of_each * hidden.len(), "{case}");
        for name in fixture.names(&format!("{case}.final.neuron_moment.")) {
            let expected = fixture.values(&format!("{case}.final.neuron_moment.{name}"));
            expect_close(name, &values(&state[&format!("neuron_moment.{name}")]), expected, 2e-6);
        }
        restored.restore(state.clone(), &device).expect("its own");
        if ema_decay > 0.0 {
            let mut without_weights = state.clone();
            let found = restored.restore_average(matrices, &mut without_weights, &device);
            assert_eq!(found.err(), Some(StateError::Misfit("weights.wide.weight".to_owned())));
        }
        let values = |state: &BTreeMap<String, LazyTensor>| -> Vec<Vec<f32>> { state.values().map(values).collect() };
        assert_eq!(values(&restored.state()), values(&state), "{case}");
    }
}

fn after_one_step(kind: OptimizerKind) -> Optimizer {
    let (setup, fixture) = MuonFixture::read();
    let config = OptimizerConfig { kind, ..setup.optimizer.clone() };
    let gpt = setup.gpt(&fixture, &Device::flex());
    let mut optimizer = Optimizer::new(&config, gpt.parameters(), MatmulPrecision::F32);
    let (gradients, _) = setup.clipped(&fixture, 0, &Device::flex());
    optimizer.step(gpt, gradients, setup.learning_rate(0), 0);
    optimizer
}

fn values(mean: &LazyTensor) -> Vec<f32> {
    mean.read().expect("its device works").values
}

#[test]
fn optimizer_refuses_foreign_state() {
    let mut muon = after_one_step(OptimizerKind::Muon);
    let mut adamw = after_one_step(OptimizerKind::Adamw);
    let device = Device::flex();
    let other_kind = muon.restore(adamw.state(), &device);
    assert_eq!(other_kind.unwrap_err().to_string(), "\"adamw\" wrote it, and optimizer.kind is \"muon\"");
    let muon = after_one_step(OptimizerKind::Muon);
    let other_kind = adamw.restore(muon.state(), &device);
    assert_eq!(
        other_kind,
        Err(StateError::OtherKind { written: OptimizerKind::Muon, configured: OptimizerKind::Adamw })
    );
    let key = "momentum.blocks.0.mlp.gate.weight".to_owned();
    let restore = |state| after_one_step(OptimizerKind::Muon).restore(state, &device);
    let mut missing = muon.state();
    missing.remove(&key);
    assert_eq!(restore(missing), Err(StateError::Misfit(key.clone())));
    let mut short = muon.state();
    let too_few = Tensor::<1>::from_floats([1.0], &device);
    short.insert(key.clone(), LazyTensor::on_device(too_few));
    assert_eq!(restore(short), Err(StateError::Misfit(key.clone())));
    let mut more = muon.state();
    more.insert("momentum.of.nothing".to_owned(), more[&key].clone());
    let of_nothing = StateError::Misfit("momentum.of.nothing".to_owned());
    assert_eq!(restore(more), Err(of_nothing));
}
