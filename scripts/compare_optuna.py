"""Optuna's Hyperband over `tinderbox train --json`, at an equal budget of training steps: see compare_optuna.sh."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import optuna

tinderbox, base, minutes, out = sys.argv[1:5]
space = dict(text.split("=", 1) for text in sys.argv[5:])
budget_s = 60 * float(minutes)


def plan(sets):
    """The steps of a config's own run, and the measured seconds of one."""
    arguments = [word for text in sets for word in ("--set", text)]
    ran = subprocess.run([tinderbox, "plan", base, *arguments, "--json"], check=True, capture_output=True, text=True)
    planned = json.loads(ran.stdout)
    return planned["run"]["steps"], planned["time"]["measured"]["step_ms"] / 1e3


def suggest(trial, key, values):
    """A value of a dimension in the grammar of `sweep --space`."""
    found = re.fullmatch(r"(log\()?([^,()]+)\.\.([^,()]+)\)?", values)
    if not found:
        return trial.suggest_categorical(key, re.split(r",(?![^\[]*\])", values))
    log, low, high = found.groups()
    if re.fullmatch(r"\d+", low) and re.fullmatch(r"\d+", high):
        return trial.suggest_int(key, int(low), int(high), log=bool(log))
    return trial.suggest_float(key, float(low), float(high), log=bool(log))


base_steps, base_step_s = plan([])
# As in the sweep: 27 settings by halving cost three whole runs.
full_s = min(base_steps * base_step_s, budget_s / 3)
spent_s = 0.0


def objective(trial):
    global spent_s
    sets = [f"{key}={suggest(trial, key, values)}" for key, values in space.items()]
    try:
        _, step_s = plan(sets)
    except subprocess.CalledProcessError as error:
        raise optuna.TrialPruned(error.stderr)
    steps = max(27, int(full_s / step_s))
    of_run = {"max_steps": steps, "eval_interval": steps // 27, "checkpoint_interval": 0, "sample_tokens": 0}
    trial.set_user_attr("sets", sets + [f"train.max_steps={int(base_steps * base_step_s / step_s)}"])
    run = os.path.join(out, "optuna", f"trial-{trial.number:03}")
    arguments = [word for text in sets for word in ("--set", text)]
    arguments += [word for key, value in of_run.items() for word in ("--set", f"train.{key}={value}")]
    command = [tinderbox, "train", base, *arguments, "--run-dir", run, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    reported, made = 0, 0
    try:
        while process.poll() is None and spent_s + made * step_s < budget_s:
            for step, loss in evaluations(run):
                made = max(made, step)
                rung = step * 27 // steps
                if rung > reported:
                    reported = rung
                    trial.report(loss, rung)
                    if trial.should_prune():
                        raise optuna.TrialPruned
            time.sleep(0.05)
        if process.poll() is None:
            trial.study.stop()
            raise optuna.TrialPruned
        if process.returncode != 0:
            raise optuna.TrialPruned  # it diverged
        made = steps
        return json.loads(process.stdout.read())["val_bits_per_byte"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        spent_s += made * step_s
        if spent_s >= budget_s:
            trial.study.stop()


def evaluations(run):
    """The steps and losses of the evaluations that a run has logged so far."""
    try:
        with open(os.path.join(run, "metrics.jsonl")) as log:
            text = log.read()
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and "val_bits_per_byte_estimate" in line:
            values = json.loads(line)
            yield values["step"], values["val_bits_per_byte_estimate"]


pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=27, reduction_factor=3)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1337), pruner=pruner)
study.optimize(objective)
done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
if not done:
    sys.exit("no trial of Optuna was trained to its end\n  hint: give both more minutes")
best = min(done, key=lambda trial: trial.value)
with open(os.path.join(out, "optuna.sets"), "w") as sets:
    sets.write("".join(f"{text}\n" for text in best.user_attrs["sets"]))
print(f"Optuna: {len(study.trials)} trials, {len(done)} to their end, {spent_s:.0f} s of training steps", file=sys.stderr)
