//! Simulates power failures during a run. `recorder.c` records the program's file operations; after each of them the
//! disk is reconstructed as it may then be, without some or all of the unflushed data, and the run resumes from there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rayon::prelude::*;
use tinderbox::run::{Checkpoint, RunDir};

use crate::fixtures::{Folder, Ran, files, fs, set};

const SETTINGS: [&str; 8] = [
    "train.max_steps=4",
    "train.checkpoint_interval=2",
    "train.eval_interval=2",
    "train.log_interval=1",
    "train.keep_checkpoints=1",
    "model.n_layers=1",
    "train.sample_tokens=5",
    "train.tensorboard=true",
];

fn train(folder: &Folder, more: &[&str]) -> Command {
    folder.command(&[&["train", "tiny.toml", "--run-dir", "run"], &*set(&SETTINGS), more].concat())
}

/// The contents of a folder: files, and `None` for folders.
type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// A file or folder, both as programs see it and as last flushed.
#[derive(Default)]
struct Node {
    is_folder: bool,
    bytes: Vec<u8>,
    flushed_bytes: Vec<u8>,
    names: BTreeMap<String, usize>,
    flushed_names: BTreeMap<String, usize>,
}

#[derive(Clone, Copy, Debug)]
enum Unflushed {
    Kept,
    Lost,
    /// The first half is kept, the rest is zeros.
    Torn,
}

/// A file system below `root`, whose node is the first.
struct Disk {
    root: PathBuf,
    nodes: Vec<Node>,
    by_inode: HashMap<u64, usize>,
}

impl Disk {
    /// The current files in `root`, all flushed.
    fn of(root: PathBuf) -> Self {
        let inode = fs::metadata(&root).expect("a folder").ino();
        let node = Node { is_folder: true, ..Node::default() };
        let mut disk = Self { root: root.clone(), nodes: vec![node], by_inode: HashMap::from([(inode, 0)]) };
        for entry in fs::read_dir(&root).expect("a folder") {
            let path = entry.expect("an entry").path();
            disk.create(fs::metadata(&path).expect("a file").ino(), &path, false);
            disk.nodes.last_mut().expect("just made").bytes = fs::read(path);
        }
        for node in 0..disk.nodes.len() {
            disk.flush(node);
        }
        disk
    }

    /// The folder that contains `path`, and its name there; `None` outside the root.
    fn parent(&mut self, path: &Path) -> Option<(&mut Node, String)> {
        let mut folder = 0;
        for name in path.strip_prefix(&self.root).ok()?.parent()? {
            folder = self.nodes[folder].names[name.to_str()?];
        }
        Some((&mut self.nodes[folder], path.file_name()?.to_str()?.to_owned()))
    }

    fn create(&mut self, inode: u64, path: &Path, is_folder: bool) {
        let node = self.nodes.len();
        if let Some((parent, name)) = self.parent(path) {
            parent.names.insert(name, node);
            self.nodes.push(Node { is_folder, ..Node::default() });
            self.by_inode.insert(inode, node);
        } else {
            self.by_inode.remove(&inode); // of a deleted file
        }
    }

    fn flush(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.flushed_bytes.clone_from(&node.bytes);
        node.flushed_names.clone_from(&node.names);
    }

    fn apply(&mut self, change: &Change<'_>) {
        let path = Path::new(std::str::from_utf8(change.bytes).unwrap_or_default());
        let node = self.by_inode.get(&change.inode).copied();
        match (change.name, node) {
            ("create" | "mkdir", _) => self.create(change.inode, path, change.name == "mkdir"),
            ("write", Some(node)) => {
                let (bytes, end) = (&mut self.nodes[node].bytes, change.number + change.bytes.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[change.number..end].copy_from_slice(change.bytes);
            }
            ("resize", Some(node)) => self.nodes[node].bytes.resize(change.number, 0),
            ("sync", Some(node)) => self.flush(node),
            ("remove", _) => {
                if let Some((parent, name)) = self.parent(path) {
                    parent.names.remove(&name);
                }
            }
            ("rename", _) => {
                let (from, to) = path.to_str().and_then(|both| both.split_once('\n')).expect("two paths");
                let moved = self.parent(Path::new(from)).and_then(|(parent, name)| parent.names.remove(&name));
                if let (Some(node), Some((parent, name))) = (moved, self.parent(Path::new(to))) {
                    parent.names.insert(name, node);
                }
            }
            (name, Some(_)) => panic!("what is `{name}`?"),
            (_, None) => {} // of a file elsewhere
        }
    }

    fn unflushed_folders(&self) -> Vec<usize> {
        let folders = self.nodes.iter().enumerate().filter(|(_, node)| node.names != node.flushed_names);
        folders.map(|(idx, _)| idx).collect()
    }

    /// The files that a reader finds if the folders of `lost` have only their flushed names.
    fn tree(&self, lost: &[usize], unflushed: Unflushed) -> Tree {
        let mut tree = Tree::new();
        let mut open = vec![(0, PathBuf::new())];
        while let Some((folder, path)) = open.pop() {
            let node = &self.nodes[folder];
            for (name, &node) in if lost.contains(&folder) { &node.flushed_names } else { &node.names } {
                let path = path.join(name);
                if self.nodes[node].is_folder {
                    open.push((node, path.clone()));
                }
                tree.insert(path, self.nodes[node].found(unflushed));
            }
        }
        tree
    }

    /// Every possible state of the disk: the names of some folders lost, or of none, and bytes of files.
    fn trees(&self) -> Vec<Tree> {
        let folders = self.unflushed_folders();
        assert!(folders.len() < 8, "{} folders were not flushed", folders.len());
        let some = |chosen: usize| (0..folders.len()).filter(move |n| chosen >> n & 1 == 1).map(|n| folders[n]);
        let lost = (0..1 << folders.len()).map(|chosen| some(chosen).collect::<Vec<_>>());
        let kinds = [Unflushed::Kept, Unflushed::Lost, Unflushed::Torn];
        lost.flat_map(|lost| kinds.map(|unflushed| self.tree(&lost, unflushed))).collect()
    }
}

impl Node {
    fn found(&self, unflushed: Unflushed) -> Option<Vec<u8>> {
        let (new, old) = (&self.bytes, &self.flushed_bytes);
        (!self.is_folder).then(|| match unflushed {
            Unflushed::Kept => new.clone(),
            Unflushed::Lost => old.clone(),
            Unflushed::Torn => {
                let n_same = new.iter().zip(old).take_while(|(new, old)| new == old).count();
                let half = n_same.midpoint(new.len());
                let mut torn = [&new[..half], old.get(half..).unwrap_or_default()].concat();
                torn.resize(new.len(), 0);
                torn
            }
        })
    }
}

struct Change<'a> {
    name: &'a str,
    inode: u64,
    number: usize,
    bytes: &'a [u8],
}

fn changes(mut record: &[u8]) -> Vec<Change<'_>> {
    let mut changes = Vec::new();
    while let Some(end) = record.iter().position(|&byte| byte == b'\n') {
        let head = std::str::from_utf8(&record[..end]).expect("the bytes are UTF-8");
        let fields: Vec<&str> = head.split(' ').collect();
        let [name, inode, number, n] = fields[..] else { panic!("{head}") };
        let number_of = |field: &str| field.parse::<usize>().expect("a number");
        let (bytes, rest) = record[end + 1..].split_at(number_of(n));
        changes.push(Change { name, inode: number_of(inode) as u64, number: number_of(number), bytes });
        record = rest;
    }
    changes
}

fn record(folder: &Folder) -> Vec<u8> {
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    let [library, record] = ["recorder.so", "record"].map(|name| elsewhere.path().join(name));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorder.c");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("Rust needs a C compiler, too").success());
    let mut train = train(folder, &[]);
    let output = train.env("LD_PRELOAD", library).env("RECORDED", &record).output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(record)
}

/// The step of the last metrics line, and that of the last checkpoint, as programs see them.
fn progress(tree: &Tree) -> (usize, usize) {
    let text = |name: &str| {
        let bytes = tree.get(Path::new(name)).cloned().flatten().unwrap_or_default();
        String::from_utf8(bytes).expect("the bytes are UTF-8")
    };
    let logged = text("run/metrics.jsonl").lines().last().map_or(0, |line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line");
        line["step"].as_u64().expect("a step") as usize
    });
    let last = text("run/last").trim().strip_prefix("step-").map_or(0, |step| step.parse().expect("a step"));
    (logged, last)
}

/// Calls `check`, on several threads, with each possible state of the disk, its number, and the step that must not be
/// lost: that of a checkpoint that the run has moved on from. Returns the number of states, and of those with a step.
fn replay(folder: &Folder, check: impl Fn(&Tree, usize, usize) + Sync) -> [usize; 2] {
    let root = folder.path("").canonicalize().expect("a folder");
    let mut disk = Disk::of(root.clone());
    let record = record(folder);
    let changes = changes(&record);
    let (hasher, mut seen, mut saved) = (RandomState::new(), HashSet::new(), 0);
    let mut counts = [0, 0];
    for (n, change) in (1..).zip(&changes) {
        disk.apply(change);
        let (logged, last) = progress(&disk.tree(&[], Unflushed::Kept));
        saved = if logged > last || n == changes.len() { last } else { saved };
        let mut trees = disk.trees();
        trees.retain(|tree| seen.insert(hasher.hash_one((tree, saved))));
        trees.par_iter().enumerate().for_each(|(i, tree)| check(tree, counts[0] + i, saved));
        counts = [counts[0] + trees.len(), counts[1] + if saved == 2 { trees.len() } else { 0 }];
    }
    assert_eq!(saved, 4, "the run has ended");
    let expected = disk.tree(&[], Unflushed::Kept);
    let expected = expected.into_iter().filter_map(|(path, bytes)| Some((path, bytes?)));
    assert!(files(&root) == expected.collect(), "some changes were not recorded");
    counts
}

/// Checks that a run on this disk keeps what `saved` promises, and that it resumes to the same end if `goes_on`.
fn check(tree: &Tree, saved: usize, whole: &Folder, goes_on: bool) {
    let is_saved = saved > 0 || tree.contains_key(Path::new("run/last"));
    if !is_saved && !goes_on {
        return; // nothing is promised
    }
    let folder = Folder::new();
    for (path, bytes) in tree.iter().filter(|(path, _)| goes_on || path.starts_with("run")) {
        match bytes {
            None => fs::create_dir_all(folder.path("").join(path)),
            Some(bytes) => fs::write(folder.path("").join(path), bytes),
        }
    }
    let root = folder.path("run");
    let listed = || tree.iter().map(|(path, bytes)| (path, bytes.as_ref().map(Vec::len))).collect::<Vec<_>>();
    if is_saved {
        let last = RunDir::open(&root).and_then(|run| Checkpoint::read(&run.last()?));
        let last = last.unwrap_or_else(|error| panic!("step {saved} was saved: {error}\n{:?}", listed()));
        assert!(last.state.step >= saved, "{} is not {saved}: {:?}", last.state.step, listed());
    }
    if !goes_on {
        return;
    }
    let starts: [&[&str]; 3] = [&["--resume"], &[], &["--overwrite"]];
    let starts = &starts[..if saved > 0 { 1 } else { 3 }];
    let (mut failures, mut is_done) = (Vec::new(), false);
    for more in starts {
        let ran = Ran::of(train(&folder, more));
        is_done = ran.stderr.contains("made all of its 4 steps");
        if ran.code == Some(0) || is_done {
            break;
        }
        failures.push(ran.stderr);
    }
    assert!(failures.len() < starts.len(), "{failures:?}\n{:?}", listed());
    // Its records contain the time of day. The last one may be missing: the metrics say that a run is done, and are
    // written first.
    let events = "run/tensorboard/events.out.tfevents.tinderbox";
    let n_events = |folder: &Folder| fs::metadata(folder.path(events)).map(|it| it.len()).ok();
    assert!(is_done || n_events(&folder) == n_events(whole), "events are lost: {:?}", listed());
    let end = ["model.safetensors", "optimizer.safetensors", "state.json"];
    let end = end.map(|name| format!("run/checkpoints/step-000004/{name}"));
    for name in end.iter().map(String::as_str).chain(["run/metrics.jsonl", "run/samples.txt", "run/last", "run/best"]) {
        let bytes = |folder: &Folder| fs::read(folder.path(name));
        assert!(bytes(&folder) == bytes(whole), "{name} differs after {:?}", listed());
    }
}

/// Checks every state of the disk, and resumes from one in `every`.
fn power_fails(every: usize) {
    let whole = Folder::new();
    let [n, n_saved] = replay(&whole, |tree, number, saved| check(tree, saved, &whole, number % every == 0));
    assert!(n > 200 && n_saved > 50, "{n} states, {n_saved} with a checkpoint");
    eprintln!("{n} states, {n_saved} with a checkpoint");
}

#[test]
fn run_resumes_after_power_loss() {
    power_fails(100);
}

#[test]
#[ignore = "takes minutes"]
fn run_resumes_after_power_loss_at_any_moment() {
    power_fails(1);
}
