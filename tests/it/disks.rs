//! Disks that fill up, and files that can no longer be read or written.

use insta::assert_snapshot;
use serde_json::Value;

use crate::fixtures::{Folder, Ran, fs};

/// Runs a shell in `folder` that can mount file systems invisible to other processes.
fn in_namespace(folder: &Folder, script: &str) -> Ran {
    let output = folder.program("unshare").args(["-rm", "sh", "-euc", script]).output();
    Ran::from(output.expect("it did before"))
}

/// Whether `disk` can be mounted in `folder`; reports if not.
fn may_mount(folder: &Folder) -> bool {
    let mount = "mount -t tmpfs -o size=300k tmpfs disk";
    let mounted = folder.program("unshare").args(["-rm", "sh", "-euc", mount]).status();
    let is_mounted = mounted.is_ok_and(|status| status.success());
    if !is_mounted {
        crate::skip("this user may not mount anything", "TINDERBOX_REQUIRE_MOUNT");
    }
    is_mounted
}

/// In its own file system of 300 kB, which vanishes with the process.
#[test]
fn full_disk_keeps_saved_checkpoints() {
    let folder = Folder::new();
    fs::create_dir(folder.path("disk"));
    let mounted = "mount -t tmpfs -o size=300k tmpfs disk";
    if !may_mount(&folder) {
        return;
    }
    let binary = assert_cmd::cargo::cargo_bin!("tinderbox").display();
    let train = format!("'{binary}' train tiny.toml --run-dir disk/run --set train.max_steps=60");
    let script = format!(
        "{mounted}
        head -c 300000 /dev/zero >disk/other || true
        {train} 2>out0 || echo $?
        rm disk/other
        {train} --overwrite --set train.keep_checkpoints=50 2>out1 || echo $?
        '{binary}' generate disk/run --max-new-tokens 1 >written
        rm -r disk/run/checkpoints/step-000010
        {train} --set train.keep_checkpoints=1 --resume --json 2>out2"
    );
    let ran = in_namespace(&folder, &script);
    let (codes, report) = ran.stdout.split_at(4);
    assert_eq!(codes, "1\n1\n", "{}", ran.stderr);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(report).expect("one object");
    assert_eq!(report["steps"], 60);
    let error = |file: &str| {
        folder.read(file).lines().skip_while(|line| !line.starts_with("error")).collect::<Vec<_>>().join("\n")
    };
    assert_snapshot!(error("out0"), @r#"
    error: cannot write `disk/run/tokenizer.json`: No space left on device (os error 28)
      hint: make room on the disk, and start anew with --overwrite: no checkpoint was saved yet
    "#);
    assert_snapshot!(error("out1"), @r#"
    error: cannot write `disk/run/checkpoints/step-000030/optimizer.safetensors`: No space left on device (os error 28)
      hint: make room on the disk; earlier checkpoints are whole, and --resume continues from the last
    "#);
}

fn assert_same_end(folder: &Folder, one: &str, other: &str) {
    let end = |run: &str| {
        let run = folder.path(run);
        let logs = ["metrics.jsonl", "samples.txt", "best", "last"].map(|name| fs::read(run.join(name)));
        let last = String::from_utf8(logs[3].clone()).expect("the bytes are UTF-8");
        let checkpoint = ["model.safetensors", "optimizer.safetensors", "state.json"];
        (logs, checkpoint.map(|name| fs::read(run.join("checkpoints").join(last.trim()).join(name))))
    };
    assert!(end(one) == end(other), "{one} and {other} differ");
}

/// Shell functions: `train RUN STEPS ...` trains as all of these tests do, `start` does so by replacing the shell,
/// `step RUN` prints the step of the last checkpoint, `fail` reports why.
fn functions() -> String {
    let binary = assert_cmd::cargo::cargo_bin!("tinderbox").display();
    let settings = ["train.checkpoint_interval=2", "train.keep_checkpoints=3", "schedule.kind=constant"];
    format!(
        "start() {{
            run=$1 steps=$2
            shift 2
            exec '{binary}' train tiny.toml --run-dir $run --set train.max_steps=$steps --set {} \"$@\" 2>out
        }}
        train() {{ (start \"$@\"); }}
        step() {{ sed 's/step-0*//' $1/last; }}
        fail() {{ cat out >&2; exit 3; }}
        ",
        settings.join(" --set ")
    )
}

#[test]
#[ignore = "takes minutes"]
fn full_disk_of_any_size_keeps_saved_checkpoints() {
    let folder = Folder::new();
    fs::create_dir(folder.path("disk"));
    if !may_mount(&folder) {
        return;
    }
    let script = functions()
        + "train whole 20
        for size in $(seq 12 12 720); do
            mount -t tmpfs -o size=${size}k tmpfs disk
            code=0
            train disk/run 20 || code=$?
            echo $code
            mount -o remount,size=8m disk
            start=--overwrite
            if [ -e disk/run/last ]; then start=--resume; fi
            [ $code = 0 ] || train disk/run 20 $start || fail
            cp -r disk/run run-$size
            umount disk
        done";
    let ran = in_namespace(&folder, &script);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let codes: Vec<&str> = ran.stdout.lines().collect();
    let n_full = codes.iter().filter(|code| **code == "1").count();
    eprintln!("{n_full} of {} disks were full", codes.len());
    assert!(codes.len() == 60 && codes.iter().all(|code| ["0", "1"].contains(code)), "{codes:?}");
    assert!((20..60).contains(&n_full), "{codes:?}");
    for size in (12..=720).step_by(12) {
        assert_same_end(&folder, "whole", &format!("run-{size}"));
    }
}

/// Runs a shell in `folder` that is subject to file modes, even as root; `None` if that is impossible.
fn unprivileged(folder: &Folder, script: &str) -> Option<Ran> {
    folder.write("closed", "");
    let honoured = "chmod 000 closed; ! cat closed 2>/dev/null";
    let dropped = ["--bounding-set=-dac_override,-dac_read_search", "sh", "-euc"];
    for (program, args) in [("sh", &["-euc"][..]), ("setpriv", &dropped)] {
        let run = |script: &str| folder.program(program).args(args).arg(script).output().ok().map(Ran::from);
        if run(honoured).is_some_and(|ran| ran.code == Some(0)) {
            return run(script);
        }
    }
    crate::skip("this user may read every file", "TINDERBOX_REQUIRE_MOUNT");
    None
}

#[test]
#[ignore = "takes a minute"]
fn lost_permissions_keep_saved_checkpoints() {
    let folder = Folder::new();
    // During training: each folder in turn. Before resuming: each file and each folder.
    let script = functions()
        + r"chosen() { find half -mindepth 1 -maxdepth 3 | sort | cut -d/ -f2-; }
        for closed in . checkpoints; do
            run=while-${#closed}
            start $run 100000 &
            until [ -e $run/last ]; do sleep 0.02; done
            chmod 555 $run/$closed
            code=0
            wait $! || code=$?
            chmod 755 $run/$closed
            echo $closed $code $(grep -c 'cannot .*Permission denied' out) $run $run-whole
            end=$(($(step $run) + 2))
            train $run $end --resume || fail
            train $run-whole $end
        done
        start half 100000 &
        until [ -e half/last ]; do sleep 0.02; done
        kill -TERM $!
        wait $! || true
        end=$(($(step half) + 2))
        train whole $end
        for path in $(chosen); do
            cp -r half before
            mode=$(stat -c %a before/$path)
            chmod 000 before/$path
            code=0
            train before $end --resume || code=$?
            chmod $mode before/$path || true # an old checkpoint, and gone
            run=before-$(echo $path | tr / _)
            echo $path $code $(grep -c 'cannot .*Permission denied' out || true) $run whole
            [ $code = 0 ] || train before $end --resume || fail
            mv before $run
        done";
    let Some(ran) = unprivileged(&folder, &script) else { return };
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    eprintln!("{}", ran.stdout);
    let mut n_refused = 0;
    for line in ran.stdout.lines() {
        let [_, code, n_said, one, other] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(code == "0" || (code, n_said) == ("1", "1"), "{line}");
        n_refused += usize::from(code == "1");
        assert_same_end(&folder, one, other);
    }
    assert!(n_refused > 8, "{}", ran.stdout);
}
