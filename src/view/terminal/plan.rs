//! A plan as text for a terminal.

use crate::config::{Config, precision_remark};
use crate::data::Records;
use crate::format::{duration, fixed, grouped, milliseconds, percent, short, size, whole};
use crate::plan::{Distributed, Exchanges, FinetunePlan, Memory, Plan, SlotMemory, Time, Vocabulary};

/// The plan of `config` as text for a terminal; ends with a line break.
pub fn plan_table(plan: &Plan, config: &Config) -> String {
    let mut text = String::new();
    model(&mut text, plan, config);
    compute(&mut text, plan, config);
    run(&mut text, plan, config);
    memory(&mut text, plan);
    disk(&mut text, plan);
    if let Some(time) = &plan.time {
        self::time(&mut text, time, plan);
    }
    if let Some(distributed) = &plan.distributed {
        self::distributed(&mut text, distributed, config);
    }
    text
}

/// The plan of a fine-tuning as text for a terminal; ends with a line break.
pub fn finetune_plan_table(plan: &FinetunePlan, config: &Config) -> String {
    let mut text = String::new();
    let base = config.finetune.base.as_deref().map_or_else(String::new, |base| base.display().to_string());
    let method = serde_json::to_string(&plan.method).unwrap_or_default();
    heading(&mut text, "fine-tuning", &format!("{base} by {}", method.trim_matches('"')));
    row(&mut text, "parameters", &grouped(plan.parameters), "");
    let share = percent(plan.trained_parameters as f64 / plan.parameters.max(1) as f64);
    row(&mut text, "of which are trained", &grouped(plan.trained_parameters), &format!("as many as {share}"));
    let Records { used, rows, skipped, cut, tokens, counted_tokens, longest, preferences, endless, written, .. } =
        &plan.records;
    heading(&mut text, if *preferences { "preferences" } else { "records" }, &grouped(*used as u64));
    let packed = format!("packed into {} rows", grouped(*rows as u64));
    let packed = if *rows < plan.train_records { &packed } else { "" };
    row(&mut text, "for training", &grouped(plan.train_records as u64), packed);
    row(&mut text, "held out", &grouped(plan.val_records as u64), "");
    let counted = format!("of which {} count", grouped(*counted_tokens));
    row(&mut text, "tokens", &grouped(*tokens), &counted);
    row(&mut text, "of the longest", &grouped(*longest as u64), "");
    let [endless, written] = [endless, written].map(|found| found.map_or(0, |(n, _)| n));
    for (name, n) in [
        ("cut off at their ends", *cut),
        ("left out", *skipped),
        ("without a stop token", endless),
        ("with tokens of the template", written),
        ("files without records", plan.records.left_out.len()),
    ] {
        if n > 0 {
            row(&mut text, name, &grouped(n as u64), "");
        }
    }
    heading(&mut text, "run", &format!("{} steps, {} passes", grouped(plan.steps as u64), fixed(plan.passes, 1)));
    row(&mut text, "tokens per step", &whole(plan.tokens_per_step), "on average, padding included");
    row(&mut text, "of the largest batch", &grouped(plan.largest_batch as u64), "");
    row(&mut text, "checkpoint", &size(plan.checkpoint_bytes), "");
    slot(&mut text, plan.slot);
    let Some(cost) = &plan.measured else { return text };
    heading(&mut text, "measured", "steps with the largest batch");
    if let Some(peak) = cost.peak {
        let machine =
            plan.machine.map_or_else(String::new, |machine| format!("of this machine's {}", size(machine.total)));
        row(&mut text, "peak memory", &size(peak), &machine);
    }
    row(&mut text, "such a step", &milliseconds(cost.largest_step_ms), "");
    row(&mut text, "tokens per second", &whole(cost.tokens_per_s), "");
    row(&mut text, "training", &duration(cost.steps_s), "");
    row(&mut text, "evaluations", &duration(cost.evaluations_s), "at a third of the time of a step, by their tokens");
    row(
        &mut text,
        "together",
        &duration(cost.steps_s + cost.evaluations_s),
        "without loading, and the comparison at the end",
    );
    text
}

fn heading(text: &mut String, name: &str, rest: &str) {
    let gap = if text.is_empty() { "" } else { "\n" };
    text.extend([gap, name, ": ", rest, "\n"]);
}

fn row(text: &mut String, name: &str, value: &str, remark: &str) {
    text.push_str(format!("  {name:<24} {value:>15}  {remark}").trim_end());
    text.push('\n');
}

fn model(text: &mut String, plan: &Plan, config: &Config) {
    let (p, m) = (&plan.parameters, &config.model);
    let Vocabulary { size, source } = &plan.vocabulary;
    let summary = format!(
        "{} layers, {} heads, {} wide, context {}, {} tokens ({source})",
        m.n_layers,
        m.n_heads,
        m.d_model,
        grouped(m.context_length as u64),
        grouped(*size as u64)
    );
    heading(text, "model", &summary);
    let used = if m.tie_embeddings { "for the output layer too" } else { "" };
    row(text, "token embedding", &grouped(p.token_embedding), used);
    let rotated = if p.position_embedding == 0 { "rotated instead" } else { "" };
    row(text, "position embedding", &grouped(p.position_embedding), rotated);
    let of_each = format!("{} in each block:", grouped(p.block.total));
    row(text, "blocks", &grouped(p.n_layers.saturating_mul(p.block.total)), &of_each);
    let parts = [
        ("  queries, keys, values", p.block.attention_qkv),
        ("  attention's output", p.block.attention_output),
        ("  MLP", p.block.mlp),
        ("  norms", p.block.norms),
    ];
    for (name, n) in parts {
        row(text, name, "", &format!("{:>13}", grouped(n)));
    }
    row(text, "last norm", &grouped(p.final_norm), "");
    if p.output > 0 {
        row(text, "output layer", &grouped(p.output), "");
    }
    row(text, "parameters", &grouped(p.total), "");
    let Some(portable) = &plan.portable else { return };
    heading(text, "portable", &portable.family.map_or_else(|| "no".to_owned(), |family| format!("yes ({family})")));
    for key in &portable.unsupported_keys {
        text.extend(["  ", key, "\n"]);
    }
}

fn compute(text: &mut String, plan: &Plan, config: &Config) {
    let c = &plan.flops_per_token;
    heading(text, "FLOPs per token", "matrix products only; a multiplication and an addition count as two");
    let parts = [
        ("queries, keys, values", c.attention_qkv),
        ("attention's output", c.attention_output),
        ("MLPs", c.mlp),
        ("output layer", c.output),
    ];
    for (name, flops) in parts {
        row(text, name, &si(flops), "");
    }
    let is_causal = c.attention < c.attention_full;
    let all = format!("all {} positions", config.model.context_length);
    let (causal, full) = (si(c.attention_causal), si(c.attention_full));
    let seen = match is_causal {
        true => format!("over the positions it may see; over {all} {full}"),
        false => format!("over {all}; over those it may see {causal}"),
    };
    row(text, "attention", &si(c.attention), &seen);
    row(text, "forward", &si(c.forward), "");
    let rule = format!("the rule of thumb, 6 for each parameter, gives {}", si(c.six_n));
    row(text, "forward and backward", &si(c.training), &rule);
    if is_causal {
        let convention = format!("with attention over {all}");
        row(text, "  as MFU counts", &si(c.training_mfu), &convention);
    }
}

fn run(text: &mut String, plan: &Plan, config: &Config) {
    let (r, t) = (&plan.run, &config.train);
    heading(text, "run", &format!("{} steps", grouped(r.steps)));
    let mut batch = format!("{} rows of {}", t.batch_size, config.model.context_length);
    if t.grad_accumulation_steps > 1 {
        batch = format!("{} times {batch}", t.grad_accumulation_steps);
    }
    row(text, "tokens of a step", &grouped(r.tokens_per_step), &batch);
    let epochs = r.epochs.zip(plan.text.as_ref()).map(|(epochs, text)| {
        format!("{} times over the {} of the training text", short(epochs), grouped(text.train_tokens))
    });
    row(text, "tokens of the run", &grouped(r.tokens), &epochs.unwrap_or_default());
    let of_updates = format!("{} of them in {:?}'s updates", si(r.update_flops), config.optimizer.kind);
    row(text, "FLOPs of the run", &si(r.flops), if r.update_flops > 0.0 { &of_updates } else { "" });
}

fn memory(text: &mut String, plan: &Plan) {
    let Memory { peak, peak_during, parts, kept_for_backward, machine, .. } = plan.memory;
    heading(text, "memory", &format!("{} at most, during {peak_during}", size(peak)));
    // Which parts exist at the peak depends on the device and the operation.
    for (name, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes > 0) {
        let name = match name {
            "optimizer" => "optimizer state",
            "process" => "process, allocator",
            name => &name.replace('_', " "),
        };
        row(text, name, &size(bytes), "");
    }
    row(text, "kept for backward", &size(kept_for_backward), "");
    match machine {
        Some(machine) => {
            let free = format!("{} free now", size(machine.available));
            row(text, "this machine", &size(machine.total), &free);
        }
        None => row(text, "this device", "not known", "its driver and its pools come on top"),
    }
    slot(text, plan.slot);
}

fn slot(text: &mut String, SlotMemory { per_token, per_context }: SlotMemory) {
    row(text, "a served context", &size(per_context), &format!("{} bytes for each token", grouped(per_token)));
}

fn disk(text: &mut String, plan: &Plan) {
    let d = &plan.disk;
    heading(text, "disk", &format!("{} in {} checkpoints", size(d.total), d.checkpoints_kept));
    for (name, bytes) in [("model.safetensors", d.model), ("optimizer.safetensors", d.optimizer)] {
        row(text, name, &size(bytes), &format!("{} bytes", grouped(bytes)));
    }
}

fn time(text: &mut String, time: &Time, plan: &Plan) {
    let (m, r) = (&time.measured, &plan.run);
    let precision = precision_remark(plan.matmul_precision);
    heading(text, "time", &format!("{} on {}{precision}", duration(time.total_s), plan.device));
    let of_steps = format!(
        "{} steps of {}: {} tokens/s, {} FLOPs/s",
        grouped(r.steps),
        milliseconds(m.step_ms),
        whole(time.tokens_per_s),
        si(time.flops_per_s)
    );
    row(text, "training", &duration(time.steps_s), &of_steps);
    let of_batches = |n: u64| format!("{} batches of {}", grouped(n), milliseconds(m.evaluation_batch_ms));
    row(text, "evaluations", &duration(time.evaluations_s), &of_batches(r.evaluation_batches));
    if let Some(n) = r.validation_batches {
        row(text, "the last evaluation", &duration(time.last_evaluation_s), &of_batches(n));
    }
    let of_tokens = format!("{} tokens of {}", grouped(r.sample_tokens), milliseconds(m.sample_token_ms));
    row(text, "samples", &duration(time.samples_s), &of_tokens);
    let of_saves = format!("{} of {}", grouped(r.checkpoints), milliseconds(m.checkpoint_ms));
    row(text, "checkpoints", &duration(time.checkpoints_s), &of_saves);
    row(text, "measured", "", &m.how);
}

fn distributed(text: &mut String, planned: &Distributed, config: &Config) {
    let Distributed { ranks, rows, compute_ms, step, local } = planned;
    heading(text, "distributed", &format!("{ranks} ranks"));
    if let Some(compute_ms) = compute_ms {
        let its_rows = format!("{rows} of {} rows, on a machine like this one", config.train.batch_size);
        row(text, "computing of a rank", &milliseconds(*compute_ms), &its_rows);
    }
    for (name, Exchanges { bytes, steps }) in [("sync = \"step\"", step), ("sync = \"local\"", local)] {
        let every = if *steps == 1 { "every step".to_owned() } else { format!("every {steps} steps") };
        row(text, name, &size(*bytes), &format!("each way and rank, {every}"));
    }
}

/// A number with an SI prefix, in three or four digits.
pub(crate) fn si(n: f64) -> String {
    let units = ["", " k", " M", " G", " T", " P", " E", " Z", " Y"];
    let (mut n, mut unit) = (n, 0);
    while n >= 999.5 && unit + 1 < units.len() {
        n /= 1000.0;
        unit += 1;
    }
    let decimals = match n {
        _ if unit == 0 || n >= 99.95 => 0,
        _ if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{n:.decimals$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_significant_digits() {
        assert_eq!(
            [0.0, 12.0, 999.4, 1536.0, 2.46e9, 99_960.0, 999_900.0, 3.1e27].map(si),
            ["0", "12", "999", "1.54 k", "2.46 G", "100 k", "1.00 M", "3100 Y"]
        );
    }
}
