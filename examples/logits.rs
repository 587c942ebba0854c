//! Prints the logits of a run as bytes, to compare with other engines.
//!
//! `cargo run --release --example logits -- runs/quickstart < ids.jsonl > logits.bin`
//!
//! Each line of standard input is a JSON list of T ids. The answer is a line with T and V, then `[T, V]` 32-bit floats,
//! little endian.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::Path;

use burn::tensor::{Int, Tensor, TensorData};
use tinderbox::run::Trained;

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::args().nth(1).ok_or("give a run")?;
    answer(Path::new(&run), io::stdin().lock(), io::stdout().lock())
}

fn answer(run: &Path, questions: impl BufRead, mut out: impl Write) -> Result<(), Box<dyn Error>> {
    let Trained { model, .. } = Trained::open(run, Some(&"cpu".parse()?))?;
    for question in questions.lines() {
        let ids: Vec<i32> = serde_json::from_str(&question?)?;
        let data = TensorData::new(ids.clone(), [1, ids.len()]);
        let logits = model.forward(Tensor::<2, Int>::from_data(data, &model.device())); // [1, T, V]
        let [_, t, v] = logits.dims();
        writeln!(out, "{t} {v}")?;
        for logit in logits.try_into_vec_as::<f32>()? {
            out.write_all(&logit.to_le_bytes())?;
        }
        out.flush()?;
    }
    Ok(())
}
