#!/usr/bin/env python3
"""Compares `tinderbox sweep` with its base config, and with Optuna's Hyperband driving `tinderbox train`.

    cargo build --release
    pip install optuna
    scripts/compare_search.py my.txt 30                      # base and space as `init --from-text my.txt --search` has them
    scripts/compare_search.py base.toml 30 KEY=VALUES...     # those given
    scripts/compare_search.py my.txt 30 --without-optuna

Both searches have the same base, tried first, the same space, the same seconds of training steps (MINUTES on the clock),
the same threads and the same lengths of runs. Then the base and both results are trained with
several seeds for equal time, by the speed that `tinderbox plan` measures for each. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("base", type=Path, help="a config (.toml), or a text")
arguments.add_argument("minutes", type=float, help="the budget of each search")
arguments.add_argument("space", nargs="*", metavar="KEY=VALUES", help="as for `tinderbox sweep --space`; with a config")
arguments.add_argument("--run-minutes", default="10", help="of a text: the length of a run, as `init --minutes` (default 10)")
arguments.add_argument("--seeds", type=int, default=3, help="seeds of the last runs (default 3)")
arguments.add_argument("--out", type=Path, default="/tmp/compare-search", help="the folder of all runs")
arguments.add_argument("--tinderbox", type=Path, default="target/release/tinderbox")
arguments.add_argument("--without-optuna", action="store_true", help="compare the sweep with its base only")
arguments = arguments.parse_args()
tinderbox, out = arguments.tinderbox.resolve(), arguments.out.resolve()
if (arguments.base.suffix == ".toml") != bool(arguments.space):
    sys.exit("compare_search.py: a config needs KEY=VALUES, and a text has a space of its own")


def run(*words, **more):
    return subprocess.run([tinderbox, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def with_sets(sets):
    return [word for text in sets for word in ("--set", text)]


def search():
    """Makes the sweep, or goes on with it, and returns its folder."""
    budget = f"{arguments.minutes:g}m"
    out.mkdir(parents=True, exist_ok=True)
    if arguments.space:
        space = [word for text in arguments.space for word in ("--space", text)]
        run("sweep", arguments.base.resolve(), "--budget", budget, *space, "--sweep-dir", out / "sweeps/best")
    else:
        text = arguments.base.resolve()
        words = ["--minutes", arguments.run_minutes, "--search", budget, "--output", "best.toml", "--overwrite"]
        run("init", "--from-text", text, *words, cwd=out)
    return out / "sweeps/best"


sweep = search()
request = json.loads((sweep / "sweep.json").read_text())
course = next(line for line in map(json.loads, open(sweep / "log.jsonl")) if line["event"] == "planned")
base = out / "base.toml"
base.write_text(request["config"])
base_config = tomllib.loads((sweep / "runs/trial-000/config.toml").read_text())  # with all defaults
space = dict(text.split("=", 1) for text in request["space"])
jobs = course["jobs"]
of_job = {**os.environ, "RAYON_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // jobs))}


def plan(config, sets, env=None):
    """The steps and the tokens of a step of a config, and the measured seconds of a step."""
    planned = json.loads(run("plan", config, *with_sets(sets), "--json", env=env, stderr=subprocess.PIPE))
    return planned["run"]["steps"], planned["run"]["tokens_per_step"], planned["time"]["measured"]["step_ms"] / 1e3


def base_values():
    """The base's own settings, as `suggest` would choose them: a value of a list as its text."""
    found = {key: base_config[key.split(".")[0]][key.split(".")[1]] for key in space}
    return {key: toml(value) if ".." not in space[key] else value for key, value in found.items()}


def toml(value):
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def suggest(trial, key, values):
    """A value of a dimension in the grammar of `tinderbox sweep --space`."""
    found = re.fullmatch(r"(log\()?([^,()]+)\.\.([^,()]+)\)?", values)
    if not found:
        return trial.suggest_categorical(key, re.split(r",(?![^\[]*\])", values))
    log, low, high = found.groups()
    if re.fullmatch(r"\d+", low) and re.fullmatch(r"\d+", high):
        return trial.suggest_int(key, int(low), int(high), log=bool(log))
    return trial.suggest_float(key, float(low), float(high), log=bool(log))


class Hyperband:
    """Optuna's search, `jobs` runs side by side. Its rungs are those of four brackets: a 27th, a ninth, .. of a run."""

    def __init__(self, optuna):
        self.optuna, self.lock, self.spent_s = optuna, threading.Lock(), 0.0
        self.budget_s = 60 * arguments.minutes * jobs
        _, self.base_tokens, _ = plan(base, request["overrides"])
        self.eval_batches = base_config["train"]["eval_batches"]
        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=27, reduction_factor=3)
        sampler = optuna.samplers.TPESampler(seed=1337, constant_liar=jobs > 1)
        self.study = optuna.create_study(sampler=sampler, pruner=pruner)

    def best(self):
        """The overrides of the best setting: of the runs that came furthest the one with the lowest loss."""
        self.study.enqueue_trial(base_values())
        self.study.optimize(self.train, n_jobs=jobs)
        reached = [trial for trial in self.study.trials if "loss" in trial.user_attrs]
        if not reached:
            sys.exit("compare_search.py: no trial of Optuna was evaluated\n  hint: give both more minutes")
        best = min(reached, key=lambda trial: (-trial.user_attrs["rung"], trial.user_attrs["loss"]))
        done = sum(trial.user_attrs["rung"] == 27 for trial in reached)
        print(f"Optuna: {len(self.study.trials)} trials, {done} to their end, {self.spent_s:.0f} s of steps", file=sys.stderr)
        return best.user_attrs["sets"]

    def train(self, trial):
        pruned = self.optuna.TrialPruned
        sets = request["overrides"] + [f"{key}={suggest(trial, key, values)}" for key, values in space.items()]
        try:
            _, tokens, step_s = plan(base, sets, of_job)
        except subprocess.CalledProcessError as error:
            raise pruned(error.stderr)
        interval = int(course["full_s"] / step_s) // 27
        if interval == 0:
            raise pruned("a step takes too long")
        steps = int(course["full_s"] / step_s)
        trial.set_user_attr("sets", sets)
        eval_batches = -(-self.eval_batches * self.base_tokens // tokens)
        of_run = {"max_steps": steps, "eval_interval": interval, "checkpoint_interval": 0, "sample_tokens": 0}
        of_run |= {"eval_batches": eval_batches, "early_stopping_patience": 0}
        folder = out / "optuna" / f"trial-{trial.number:03}"
        command = [tinderbox, "train", base, *with_sets(sets), "--run-dir", folder, "--overwrite", "--json"]
        command += with_sets(f"train.{key}={value}" for key, value in of_run.items())
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=of_job)
        made, rung = 0, 0

        def reach(now, loss):
            trial.set_user_attr("rung", now)
            trial.set_user_attr("loss", loss)

        try:
            while process.poll() is None:
                for step, loss in evaluations(folder):
                    made = max(made, step)
                    if rung < step // interval < 27:
                        rung = step // interval
                        reach(rung, loss)
                        trial.report(loss, rung)
                        if trial.should_prune():
                            raise pruned
                if self.spent_s + made * step_s >= self.budget_s:
                    raise pruned
                time.sleep(0.05)
            if process.returncode != 0:
                raise pruned("it diverged")
            made = steps
            loss = json.loads(process.stdout.read())["val_bits_per_byte"]
            reach(27, loss)
            return loss
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait()
            with self.lock:
                self.spent_s += made * step_s
                if self.spent_s >= self.budget_s:
                    trial.study.stop()


def evaluations(folder):
    """The steps and losses of the evaluations that a run has logged so far."""
    try:
        text = (folder / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and "val_bits_per_byte_estimate" in line:
            values = json.loads(line)
            yield values["step"], values["val_bits_per_byte_estimate"]


configs = {"base": (base, request["overrides"]), "sweep": (sweep / "best.toml", [])}
if not arguments.without_optuna:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    configs["optuna"] = (base, Hyperband(optuna).best())


def step_s(config, sets):
    return statistics.median(plan(config, sets)[2] for _ in range(3))


base_steps, base_step_s = plan(*configs["base"])[0], step_s(*configs["base"])
seconds = base_steps * base_step_s
print(f"trained for {seconds:.0f} s each, by the measured time of a step\n")
print(f"{'':8} {'steps':>8} {'train, s':>9} {'median':>8} {'lowest':>8} {'highest':>8}  of the base's   bits per byte")
medians = {}
for name, (config, sets) in configs.items():
    steps = base_steps if name == "base" else max(1, round(seconds / step_s(config, sets)))
    losses, times = [], []
    for seed in range(1, arguments.seeds + 1):
        of_run = [*sets, f"train.max_steps={steps}", f"train.seed={seed}", "train.sample_tokens=0", "train.checkpoint_interval=0"]
        folder = out / "last" / f"{name}-{seed}"
        ended = run("train", config, *with_sets(of_run), "--run-dir", folder, "--overwrite", "--json", stderr=subprocess.DEVNULL)
        ended = json.loads(ended)
        losses.append(ended["val_bits_per_byte"])
        times.append(ended["train_s"])
    medians[name] = statistics.median(losses)
    ratio = medians[name] / medians["base"]
    print(
        f"{name:8} {steps:8} {statistics.median(times):9.1f} {medians[name]:8.4f} {min(losses):8.4f} {max(losses):8.4f}"
        f"  {100 * (ratio - 1):+8.2f} %",
        flush=True,
    )
if "optuna" in medians:
    print(f"\nOptuna's median beside the sweep's: {100 * (medians['optuna'] / medians['sweep'] - 1):+.2f} %")
