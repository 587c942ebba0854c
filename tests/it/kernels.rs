//! The fused CPU operations in whole runs, compared with the operations that all other backends compose. The comparison
//! of each operation with its composed form is next to its source.

use burn::tensor::Device;

use crate::devices::ndarray;
use crate::fixtures::{Place, host, largest_difference, set, text, trainer};
use crate::plan;

fn losses(place: &Place, device: &Device, options: &[&str]) -> Vec<f32> {
    let config = place.config(options);
    let (mut trainer, _) = trainer(&config, device);
    (0..config.train.max_steps).map(|_| host(trainer.step().loss)[0]).collect()
}

#[cfg(feature = "ndarray")]
#[test]
fn fused_operations_repeat_thirty_composed_losses() {
    let size = [
        "model.context_length=32",
        "model.d_model=32",
        "model.n_heads=4",
        "train.max_steps=30",
        "optimizer.learning_rate=3e-3",
    ];
    let families: [&[&str]; 3] = [
        &["model.dropout=0.0"],
        &["model.dropout=0.1", "model.bias=true", "model.tie_embeddings=false"],
        &["model.n_kv_heads=2", "model.position=rope", "model.norm=rms_norm", "model.mlp=swiglu", "model.qk_norm=true"],
    ];
    let place = Place::new();
    for family in families {
        let options = [&size[..], family].concat();
        let fused = losses(&place, &Device::flex(), &options);
        let explicit = losses(&place, &ndarray(), &options);
        assert!(largest_difference(&fused, &explicit) < 1e-3, "{family:?}: {fused:?} {explicit:?}");
        assert!(fused[29] < fused[0] - 0.3, "{family:?}: it learned nothing");
        let rounded = losses(&place, &Device::flex(), &[&options[..], &["train.matmul_precision=bf16"]].concat());
        let apart = largest_difference(&rounded, &explicit); // rounding shifts the losses only a little
        assert!(apart > 0.0 && apart < 5e-3, "{family:?}: with matrices in bf16 losses are {apart} apart");
    }
}

/// The attention weights of the explicit path alone would take 256 MiB per layer, several times over.
#[cfg(target_os = "linux")]
#[test]
fn context_of_4096_trains_below_512_mib() {
    let folder = plan::folder();
    folder.write("text.txt", text().repeat(10));
    let settings = [
        "model.context_length=4096",
        "model.d_model=64",
        "model.n_heads=4",
        "model.n_layers=2",
        "train.batch_size=1",
        "train.grad_accumulation_steps=1",
        "train.max_steps=2",
        "train.eval_interval=0",
        "train.eval_batches=1",
        "train.sample_tokens=0",
    ];
    let trained = plan::json(&folder, &[&["train", "small.toml"], &*set(&settings)].concat());
    let peak_mib = trained["peak_rss_mib"].as_f64().expect("MiB");
    assert!(peak_mib < 512.0, "{peak_mib} MiB");
}
