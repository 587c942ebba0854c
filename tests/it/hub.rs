//! `tinderbox import hf:OWNER/NAME`, with a server in this process that responds like the Hugging Face hub.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::mem::{discriminant, forget};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use insta::assert_snapshot;
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};
use sha2::{Digest as _, Sha256};

use tinderbox::interop::Outgoing;
use tinderbox::interop::gguf::{self, TensorType};
use tinderbox::model::{Dtype, LazyTensor, tensor_file};

use crate::fixtures::{Folder, Model, Ran, files, fixture, fs};

const MODEL: &str = "someone/small-1.5";
const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secretSECRETsecret";
const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Request {
    path: String,
    /// The first byte that is requested.
    from: usize,
    authorization: Option<String>,
}

/// A hub with one model.
#[derive(Debug, Default)]
struct Hub {
    files: BTreeMap<String, Vec<u8>>,
    habit: Option<Habit>,
    /// The lengths at which the next responses with this file break off.
    cuts: Mutex<BTreeMap<String, Vec<usize>>>,
    requests: Mutex<Vec<Request>>,
}

/// How a hub deviates from the simplest one.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// The model is only for clients with the token.
    IsPrivate,
    /// Files are stored elsewhere: small ones at another path, large ones at another address.
    Redirects,
    /// Responses do not state their length.
    HidesLengths,
    /// Responses with a file always start at its beginning.
    IgnoresRanges,
    /// Every response is this page.
    Says(&'static str),
    /// The list of files is changed.
    Lists(fn(&mut Value)),
    /// The responses with these files, or with the list if it is named "main", are these bytes, and the connection is
    /// closed or not.
    Answers(&'static str, &'static [u8], Afterwards),
    /// Files have these headers, too.
    AddsHeaders(&'static str),
}

/// What a hub does after a response.
#[derive(Clone, Copy, Debug)]
enum Afterwards {
    Closes,
    IsSilent,
    Repeats,
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// A file in the hub's list: large ones by their SHA-256, others by git's hash.
fn listed((name, content): (&String, &Vec<u8>)) -> Value {
    let git = Sha1::new_with_prefix(format!("blob {}\0", content.len())).chain_update(content).finalize();
    let mut file = json!({ "rfilename": name, "size": content.len(), "blobId": hexadecimal(&git) });
    if !name.contains(".json") {
        let sha256 = hexadecimal(&Sha256::digest(content));
        file["lfs"] = json!({ "sha256": sha256, "size": content.len(), "pointerSize": 130 });
    }
    file
}

impl Hub {
    /// A hub with a model made by transformers, with `scripts/fixtures/families.py`.
    fn with(family: &str) -> Self {
        let read = |file: &str| (file.to_owned(), fs::read(fixture(family).join(file)));
        let mut files = BTreeMap::from(["config.json", "model.safetensors", "tokenizer.json"].map(read));
        files.insert("pytorch_model.bin".to_owned(), vec![0; 100]);
        Self { files, ..Self::default() }
    }

    fn which(self, habit: Habit) -> Self {
        Self { habit: Some(habit), ..self }
    }

    fn is(&self, habit: Habit) -> bool {
        self.habit.is_some_and(|it| discriminant(&it) == discriminant(&habit))
    }

    fn cut(&self, file: &str, after: &[usize]) {
        self.cuts.lock().expect("no panic").insert(file.to_owned(), after.to_vec());
    }

    /// Responds until the test process ends. Returns the address.
    fn serve(self) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("the listener has an address"));
        let hub = Arc::new(self);
        let served = Arc::clone(&hub);
        thread::spawn(move || {
            for stream in listener.incoming() {
                // Any client that hangs up early is the program, killed or done.
                stream.and_then(|stream| served.answer(stream)).ok();
            }
        });
        (hub, address)
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().transpose()?.unwrap_or_default();
        let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = BTreeMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let range = headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let request = Request {
            from: range.and_then(|(from, _)| from.parse().ok()).unwrap_or(0),
            authorization: headers.remove("authorization"),
            path,
        };
        self.requests.lock().expect("no panic").push(request.clone());
        let head = |status: &str, headers: &str| format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n");
        let text = |status: &str, text: &str| head(status, &format!("Content-Length: {}\r\n", text.len())) + text;
        if let Some(Habit::Says(page)) = self.habit {
            return stream.write_all(text("200 OK", page).as_bytes());
        }
        if self.is(Habit::IsPrivate) && request.authorization != Some(format!("Bearer {TOKEN}")) {
            return stream.write_all(text("401 Unauthorized", "").as_bytes());
        }
        let revision = request.path.strip_prefix(&format!("/api/models/{MODEL}/revision/"));
        let revision = revision.and_then(|revision| revision.strip_suffix("?blobs=true"));
        if let Some(Habit::Answers(of, bytes, afterwards)) = self.habit
            && (revision == Some(of) || revision.is_none() && request.path.ends_with(of))
        {
            stream.write_all(bytes)?;
            match afterwards {
                Afterwards::Closes => {}
                Afterwards::IsSilent => forget(stream),
                Afterwards::Repeats => while stream.write_all(&vec![b'x'; 1 << 16]).is_ok() {},
            }
            return Ok(());
        }
        if revision.is_some_and(|revision| ["main", "v1.0"].contains(&revision)) {
            let siblings: Vec<_> = self.files.iter().map(listed).collect();
            let mut info = json!({ "id": MODEL, "sha": REVISION, "siblings": siblings });
            if let Some(Habit::Lists(change)) = self.habit {
                change(&mut info);
            }
            return stream.write_all(text("200 OK", &info.to_string()).as_bytes());
        }
        let resolved = format!("/{MODEL}/resolve/{REVISION}/");
        let moved = format!("/api/resolve-cache/models/{MODEL}/{REVISION}/");
        let file = [&*resolved, &moved, "/cdn/"].into_iter().find_map(|start| request.path.strip_prefix(start));
        let Some((file, content)) = file.and_then(|file| self.files.get_key_value(file)) else {
            return stream.write_all(text("404 Not Found", "Entry not found").as_bytes());
        };
        if self.is(Habit::Redirects) && request.path.starts_with(&resolved) {
            let answer = match (file.ends_with(".safetensors"), headers.get("host")) {
                (true, Some(host)) => {
                    head("302 Found", &format!("Location: http://{host}/cdn/{file}\r\nContent-Length: 0\r\n"))
                }
                _ => head("307 Temporary Redirect", &format!("Location: {moved}{file}\r\nContent-Length: 0\r\n")),
            };
            return stream.write_all(answer.as_bytes());
        }
        self.answer_with(file, content, &request, stream)
    }

    fn answer_with(&self, file: &str, content: &[u8], request: &Request, mut stream: TcpStream) -> std::io::Result<()> {
        let from = if self.is(Habit::IgnoresRanges) { 0 } else { request.from };
        let mut body = &content[from.min(content.len())..];
        let status = match from {
            0 => "200 OK",
            from if from >= content.len() => "416 Range Not Satisfiable",
            _ => "206 Partial Content",
        };
        let mut head = Vec::new();
        write!(&mut head, "HTTP/1.1 {status}\r\nConnection: close\r\n")?;
        if from > 0 {
            write!(&mut head, "Content-Range: bytes {from}-{}/{}\r\n", content.len() - 1, content.len())?;
        }
        if !self.is(Habit::HidesLengths) {
            write!(&mut head, "Content-Length: {}\r\n", body.len())?;
        }
        if let Some(Habit::AddsHeaders(more)) = self.habit {
            write!(&mut head, "{more}")?;
        }
        head.extend(b"\r\n");
        stream.write_all(&head)?;
        let mut cuts = self.cuts.lock().expect("no panic");
        if let Some(cuts) = cuts.get_mut(file).filter(|cuts| !cuts.is_empty()) {
            body = &body[..cuts.remove(0)];
        }
        stream.write_all(body)
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut *self.requests.lock().expect("no panic"))
    }

    /// The files requested since the last call, and the first byte of each response.
    fn taken(&self) -> Vec<(String, usize)> {
        let files = self.take().into_iter().filter(|request| !request.path.contains("/revision/"));
        files.filter_map(|request| Some((request.path.rsplit_once('/')?.1.to_owned(), request.from))).collect()
    }
}

/// Imports the model with these environment variables into `runs/it`; the cache is in the folder's home directory.
fn import(folder: &Folder, address: &str, variables: &[(&str, &str)]) -> Ran {
    import_model(folder, address, "", variables)
}

/// The same, with more after the name of the model.
fn import_model(folder: &Folder, address: &str, more: &str, variables: &[(&str, &str)]) -> Ran {
    let name = format!("hf:{MODEL}{more}");
    let mut command = folder.command(&["import", &name, "--run-dir", "runs/it", "--overwrite"]);
    command.env("HF_ENDPOINT", address).envs(variables.iter().copied());
    Ran::of(command)
}

/// All files in the folder's cache, excluding directories.
fn cached(folder: &Folder) -> BTreeSet<String> {
    let root = folder.path(".cache/huggingface/hub/models--someone--small-1.5");
    let found = if root.exists() { files(&root) } else { BTreeMap::new() };
    found.into_keys().map(|path| path.display().to_string()).collect()
}

fn assert_imported(ran: &Ran, folder: &Folder, hub: &Hub) {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for (name, content) in &hub.files {
        if !name.contains('/') {
            folder.write(format!("model/{name}"), content);
        }
    }
    folder.succeed(&["verify", "runs/it", "--against", "model"]);
}

/// The error of an import that fails and leaves no run.
fn error(ran: &Ran, folder: &Folder, address: &str) -> String {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
    assert!(!folder.path("runs").exists());
    ran.stderr.replace(address, "ADDRESS")
}

fn folder() -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path("model"));
    folder
}

#[test]
fn hub_model_is_downloaded_once() {
    let folder = folder();
    let (hub, address) = Hub::with("llama").which(Habit::Redirects).serve();
    let ran = import(&folder, &address, &[]);
    assert_imported(&ran, &folder, &hub);
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    let taken: BTreeSet<String> = hub.taken().into_iter().map(|(file, _)| file).collect();
    assert!(taken.iter().eq(files), "only files that are needed: {taken:?}");
    let state = folder.read("runs/it/checkpoints/step-000000/state.json");
    assert!(state.contains(&format!("\"started_from\": \"hf:{MODEL}\"")), "{state}");

    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    assert_eq!(hub.taken(), [], "they are in the cache");
    // Nor is the hub needed in offline mode.
    assert_imported(&import(&folder, "http://127.0.0.1:9", &[("HF_HUB_OFFLINE", "1")]), &folder, &hub);
    assert_eq!(hub.take(), []);
    let elsewhere = folder.path("elsewhere");
    let elsewhere = ("HF_HUB_CACHE", elsewhere.to_str().expect("UTF-8"));
    assert_imported(&import(&folder, &address, &[elsewhere]), &folder, &hub);
    assert!(!hub.taken().is_empty(), "another cache has nothing");
}

#[test]
fn sentencepiece_tokenizer_is_downloaded() {
    let model = Model::with_sentencepiece();
    let mut hub = Hub::with("llama");
    hub.files.remove("tokenizer.json");
    for file in ["config.json", "model.safetensors", "tokenizer.model"] {
        hub.files.insert(file.to_owned(), fs::read(model.path().join(file)));
    }
    let folder = folder();
    let (hub, address) = hub.serve();
    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    assert_imported(&import(&folder, "http://127.0.0.1:9", &[("HF_HUB_OFFLINE", "1")]), &folder, &hub);
}

#[test]
fn only_indexed_files_are_downloaded() {
    let mut hub = Hub::with("llama");
    let model = hub.files.remove("model.safetensors").expect("a fixture");
    hub.files.insert("model-00001-of-00001.safetensors".to_owned(), model);
    hub.files.insert("../../outside.safetensors".to_owned(), b"x".to_vec());
    let index = |names: &[&str]| {
        let map: BTreeMap<_, _> = names.iter().enumerate().map(|(i, name)| (i.to_string(), name)).collect();
        json!({ "weight_map": map }).to_string().into_bytes()
    };
    hub.files.insert(INDEX.to_owned(), index(&["model-00001-of-00001.safetensors"]));
    let within = folder();
    let (hub, address) = hub.serve();
    assert_imported(&import(&within, &address, &[]), &within, &hub);

    let mut hub = Hub { files: hub.files.clone(), ..Hub::default() };
    hub.files.insert(INDEX.to_owned(), index(&["model-00001-of-00001.safetensors", "../../outside.safetensors"]));
    let outside = folder();
    let (_, address) = hub.serve();
    let error = error(&import(&outside, &address, &[]), &outside, &address);
    assert!(error.contains("names `../../outside.safetensors`, which is outside of the folder"), "{error}");
    assert!(!cached(&outside).iter().any(|name| name.contains("outside")), "{:?}", cached(&outside));
}

#[test]
fn address_names_revision_and_file() {
    let within = folder();
    let run = crate::fixtures::import(&Model::for_gguf("llama"), &within);
    let outgoing = Outgoing::open(&run).expect("a run");
    let file = gguf::export(&outgoing, TensorType::Q8_0, &within.path("m.gguf"), false).expect("it can be written");
    let mut hub = Hub::with("llama");
    hub.files.insert("quantized/m.gguf".to_owned(), fs::read(file));
    let (hub, address) = hub.serve();
    for more in ["/quantized/m.gguf", "@v1.0/quantized/m.gguf"] {
        let ran = import_model(&within, &address, more, &[]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        within.succeed(&["verify", "runs/it", "--against", "m.gguf"]);
    }
    let taken: BTreeSet<String> = hub.taken().into_iter().map(|(file, _)| file).collect();
    assert!(taken.iter().eq(["m.gguf"]), "nothing else, and once: {taken:?}");
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_eq!(import_model(&within, &address, "@v1.0/quantized/m.gguf", &offline).code, Some(0));
    assert_eq!(hub.take(), []);
    let missing = import_model(&within, &address, "/m.gguf", &[]);
    assert!(missing.stderr.contains("it has no file m.gguf\n  hint: there are quantized/m.gguf"), "{}", missing.stderr);

    assert_imported(&import_model(&within, &address, "@v1.0", &[]), &within, &hub);
    let unknown = import_model(&within, &address, "@v2.0", &[]);
    assert!(unknown.stderr.contains("the hub answers 404"), "{}", unknown.stderr);
}

#[test]
fn adapters_are_downloaded_for_their_base() {
    let folder = folder();
    let model = Model::of("llama");
    folder.succeed(&["import", model.path().to_str().expect("UTF-8"), "--run-dir", "base"]);
    let layer = "model.layers.0.self_attn.o_proj";
    let [n_outputs, n_inputs] = model.tensors()[&format!("{layer}.weight")].shape[..] else { panic!("a matrix") };
    let matrix = |name: &str, shape: [usize; 2]| {
        let values = vec![0.5_f32; shape[0] * shape[1]];
        let tensor = LazyTensor::computed(shape.to_vec(), move |sink| sink(&values));
        (format!("base_model.model.{layer}.lora_{name}.weight"), tensor)
    };
    let tensors = BTreeMap::from([matrix("A", [2, n_inputs]), matrix("B", [n_outputs, 2])]);
    let file = folder.path("adapter.safetensors");
    tensor_file::write_as(&file, &tensors, Dtype::F32).expect("it can be written");
    let config = json!({ "peft_type": "LORA", "lora_alpha": 4, "base_model_name_or_path": "someone/base" });
    let files =
        [("adapter_config.json", config.to_string().into_bytes()), ("adapter_model.safetensors", fs::read(&file))];
    let files = files.into_iter().chain([("README.md", Vec::new())]).map(|(name, file)| (name.to_owned(), file));
    let (hub, address) = Hub { files: files.collect(), ..Hub::default() }.serve();
    let alone = error(&import(&folder, &address, &[]), &folder, &address);
    assert!(alone.contains("it holds adapters of the model `someone/base`, without the model"), "{alone}");
    let mut command = folder.command(&["import", &format!("hf:{MODEL}"), "--base", "base", "--run-dir", "runs/it"]);
    command.env("HF_ENDPOINT", &address);
    let said = Ran::of(command).exits(0).stderr;
    assert!(said.contains("imported adapters of rank 2 for attention_output"), "{said}");
    assert!(hub.take().iter().all(|request| !request.path.ends_with("README.md")));
}

#[test]
fn broken_download_continues() {
    let hub = Hub::with("llama");
    let size = hub.files["model.safetensors"].len();
    hub.cut("model.safetensors", &[1000, size - 3000]);
    let folder = folder();
    let (hub, address) = hub.serve();
    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    let taken = hub.taken();
    let of_model = taken.into_iter().filter(|(file, _)| file == "model.safetensors").map(|(_, from)| from);
    assert!(of_model.eq([0, 1000, size - 2000]), "each answer begins where the last one ended");
    assert!(!cached(&folder).iter().any(|name| name.contains(".part")), "{:?}", cached(&folder));
}

#[test]
fn failed_download_keeps_its_part() {
    let hub = Hub::with("llama");
    hub.cut("model.safetensors", &[1000, 0, 0, 0, 0]);
    let folder = folder();
    let (hub, address) = hub.serve();
    let failed = import(&folder, &address, &[]);
    assert_snapshot!(error(&failed, &folder, &address), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the connection broke off: Peer disconnected
      hint: try again: what was downloaded is kept
    ");
    let found = cached(&folder);
    assert!(
        !found.iter().any(|name| name.starts_with("refs/main") || name.ends_with("/model.safetensors")),
        "{found:?}"
    );
    assert_snapshot!(error(&import(&folder, &address, &[("HF_HUB_OFFLINE", "1")]), &folder, &address), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: HF_HUB_OFFLINE is set, and the model is not in the cache
      hint: unset HF_HUB_OFFLINE to download it
    ");
    hub.take();
    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    assert_eq!(hub.taken(), [("model.safetensors".to_owned(), 1000)]);

    // A partial file as long as the file, left by a program killed before it was renamed.
    let blobs = ".cache/huggingface/hub/models--someone--small-1.5";
    fs::remove_file(folder.path(format!("{blobs}/snapshots/{REVISION}/model.safetensors")));
    let blob = folder.path(format!("{blobs}/blobs/{}", hexadecimal(&Sha256::digest(&hub.files["model.safetensors"]))));
    fs::rename(&blob, blob.with_extension("part"));
    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
}

#[test]
fn downloads_of_wrong_length_are_repeated() {
    // Neither the end of the response nor its length shows that something is missing, or that it is there twice.
    for habit in [Habit::HidesLengths, Habit::IgnoresRanges] {
        let hub = Hub::with("llama").which(habit);
        hub.cut("model.safetensors", &[1000]);
        let folder = folder();
        let (hub, address) = hub.serve();
        assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    }
}

#[test]
fn api_token_is_sent_and_never_printed() {
    let folder = folder();
    let (hub, address) = Hub::with("llama").which(Habit::IsPrivate).serve();
    let refused = import(&folder, &address, &[]);
    assert_snapshot!(error(&refused, &folder, &address), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the hub answers 401: there is no such model, or it is not for everybody
      hint: check the name; for a model that needs an account set HF_TOKEN
    ");
    let wrong = import(&folder, &address, &[("HF_TOKEN", "hf_wrongWRONG"), ("RUST_LOG", "trace")]);
    assert!(!error(&wrong, &folder, &address).contains("wrongWRONG"), "{}", wrong.stderr);
    hub.take();

    let ran = import(&folder, &address, &[("HF_TOKEN", &format!("{TOKEN}\n")), ("RUST_LOG", "trace")]);
    assert_imported(&ran, &folder, &hub);
    assert!(!ran.stderr.contains(TOKEN) && !ran.stdout.contains(TOKEN), "{}", ran.stderr);
    let requests = hub.take();
    assert!(requests.iter().all(|it| it.authorization == Some(format!("Bearer {TOKEN}"))), "{requests:?}");
    for file in ["config.toml", "tokenizer_config.json", "checkpoints/step-000000/state.json"] {
        assert!(!folder.read(&format!("runs/it/{file}")).contains(TOKEN), "{file}");
    }
    // An empty token counts as none.
    let (hub, address) = Hub::with("llama").serve();
    assert_imported(&import(&folder, &address, &[("HF_TOKEN", "")]), &folder, &hub);
    let asked = hub.take();
    assert!(!asked.is_empty() && asked.iter().all(|it| it.authorization.is_none()), "{asked:?}");
}

#[test]
fn unavailable_models_are_explained() {
    let folder = folder();
    let says = |hub: Hub, variables: &[(&str, &str)]| {
        let (_, address) = hub.serve();
        error(&import(&folder, &address, variables), &folder, &address)
    };
    let mut pickle = Hub::with("llama");
    pickle.files.remove("model.safetensors");
    assert_snapshot!(says(pickle, &[]), @r#"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: it has no safetensors files
      hint: its weights are in pytorch_model.bin, which can run any code: if you trust it, convert it with transformers, and import the new folder: python -c "import sys, transformers as t; [c.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for c in (t.AutoModelForCausalLM, t.AutoTokenizer)]" someone/small-1.5 NEW_FOLDER
    "#);
    let mut other = Hub::with("llama");
    other.files.remove("model.safetensors");
    other.files.insert("small.Q8_0.gguf".to_owned(), vec![0; 10]);
    assert_snapshot!(says(other, &[]), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: it has no safetensors files
      hint: name a file, as in hf:someone/small-1.5/FILE.gguf: there are small.Q8_0.gguf
    ");
    assert_snapshot!(says(Hub::default().which(Habit::Says("<html>Log in</html>")), &[]), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the answer is not the hub's: json: expected value at line 1 column 1
      hint: check the network and HF_ENDPOINT
    ");
    assert_snapshot!(says(Hub::default().which(Habit::Says(r#"{"sha": "", "siblings": []}"#)), &[]), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the answer is not the hub's: it names no revision
      hint: check the network and HF_ENDPOINT
    ");
    assert_snapshot!(says(Hub::with("llama"), &[("HF_HOME", "text.txt")]), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the cache cannot be written: Not a directory (os error 20)
      hint: make room for the cache, where you may write: HF_HOME says where it is
    ");
    let nobody = "http://127.0.0.1:9";
    assert_snapshot!(error(&import(&folder, nobody, &[]), &folder, nobody), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: the hub cannot be reached: io: Connection refused (os error 111)
      hint: check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what was downloaded before
    ");

    let (_, address) = Hub::with("llama").serve();
    let import = |name: &str| {
        let mut command = folder.command(&["import", name, "--run-dir", "runs/it"]);
        command.env("HF_ENDPOINT", &address);
        error(&Ran::of(command), &folder, &address)
    };
    assert_snapshot!(import("hf:someone/else"), @r"
    error: cannot get the model `someone/else` from the Hugging Face hub: the hub answers 404: there is no such model, or it is not for everybody
      hint: check the name; for a model that needs an account set HF_TOKEN
    ");
    assert_snapshot!(import("hf:someone/../../else"), @r"
    error: cannot get the model `someone/../../else` from the Hugging Face hub: this is not the name of a model
      hint: write hf:OWNER/NAME, as the hub's pages show it, hf:OWNER/NAME@REVISION or hf:OWNER/NAME/FILE.gguf
    ");
    assert_eq!(cached(&folder), BTreeSet::new(), "nothing is left");
}

/// The entry of a file in the hub's list.
fn entry<'a>(info: &'a mut Value, name: &str) -> &'a mut Value {
    let files = info["siblings"].as_array_mut().expect("the hub lists its files");
    files.iter_mut().find(|file| file["rfilename"] == name).expect("the hub has the file")
}

#[test]
fn hostile_hubs_are_refused() {
    use Afterwards::{Closes, IsSilent, Repeats};
    use Habit::{Answers, Lists};
    const OK: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";
    const NO_REVISION: &str = "it names no revision";
    const NO_HASH: &str = "it lists no size and hash of config.json";
    const OTHER: &str = "is not the file that the hub lists: its length or its hash is another";
    const SILENT: &str = "the hub sent nothing for 0.05 s";
    for (habit, reason) in [
        // Names that are no hashes.
        (Lists(|info| info["sha"] = json!("../../../outside")), NO_REVISION),
        (Lists(|info| info["sha"] = json!("main")), NO_REVISION),
        (Lists(|info| info["sha"] = Value::Null), "json: invalid type: null"),
        (Lists(|info| entry(info, CONFIG)["blobId"] = json!("/outside")), NO_HASH),
        (Lists(|info| entry(info, CONFIG)["blobId"] = json!("../../../../outside")), NO_HASH),
        (Lists(|info| entry(info, CONFIG)["blobId"] = json!("0".repeat(64))), NO_HASH),
        (Lists(|info| entry(info, CONFIG)["blobId"] = Value::Null), NO_HASH),
        (Lists(|info| entry(info, CONFIG)["lfs"] = json!({ "sha256": "..", "size": 1 })), NO_HASH),
        // Sizes and hashes that are others.
        (Lists(|info| entry(info, CONFIG)["size"] = Value::Null), NO_HASH),
        (Lists(|info| entry(info, CONFIG)["size"] = json!(-1)), "json: invalid value: integer `-1`"),
        (Lists(|info| entry(info, CONFIG)["size"] = json!(1e30)), "json: invalid type: floating point"),
        (Lists(|info| entry(info, CONFIG)["size"] = json!(1)), OTHER),
        (Lists(|info| entry(info, CONFIG)["blobId"] = json!("0".repeat(40))), OTHER),
        (Lists(|info| entry(info, WEIGHTS)["lfs"]["sha256"] = json!("0".repeat(64))), OTHER),
        // Lists that are none, or do not end.
        (Lists(|info| info["siblings"] = json!("all")), "json: invalid type: string"),
        (Answers("main", OK, Repeats), "the response body is larger than request limit"),
        (Answers("main", b"HTTP/1.1 200 OK\r\nX: ", Repeats), "response header is too big"),
        (Answers("main", b"SSH-2.0-OpenSSH_9.6\r\n", Closes), "protocol: http parse fail"),
        (Answers("main", b"", IsSilent), SILENT),
        // Redirections.
        (
            Answers(CONFIG, b"HTTP/1.1 302 Found\r\nLocation: file://localhost/etc/passwd\r\n\r\n", Closes),
            "the answer is not",
        ),
        (Answers(CONFIG, b"HTTP/1.1 302 Found\r\nLocation: config.json\r\n\r\n", Closes), "too many redirects"),
        (Answers(CONFIG, b"HTTP/1.1 302 Found\r\n\r\n", Closes), "missing a location header"),
        // Files that are not those of the list.
        (Answers(CONFIG, b"HTTP/1.1 204 No Content\r\n\r\n", Closes), "it answers 204 for config.json"),
        (
            Answers(CONFIG, b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-9/9\r\n\r\nx", Closes),
            "it answers 206",
        ),
        (Answers(CONFIG, b"HTTP/1.1 429 Too Many Requests\r\n\r\n", Closes), "the hub answers 429"),
        (Answers(CONFIG, OK, Repeats), OTHER),
        (Answers(CONFIG, OK, IsSilent), SILENT),
        (Answers(CONFIG, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", IsSilent), SILENT),
    ] {
        let folder = folder();
        let before: BTreeSet<_> = files(&folder.path("")).into_keys().collect();
        let (_, address) = Hub::with("llama").which(habit).serve();
        // Only a silent hub meets the limit, for a file at each attempt.
        let silence = if reason == SILENT { "0.05" } else { "60" };
        let ran = import(&folder, &address, &[("HF_HUB_DOWNLOAD_TIMEOUT", silence)]);
        let error = error(&ran, &folder, &address);
        assert!(error.contains(reason), "{habit:?}: {error}");
        assert!(!cached(&folder).iter().any(|name| name.starts_with("refs/")), "{habit:?}: {:?}", cached(&folder));
        let after = files(&folder.path("")).into_keys().filter(|path| !path.starts_with(".cache/huggingface/hub"));
        assert_eq!(after.collect::<BTreeSet<_>>(), before, "{habit:?}");
    }
    let folder = folder();
    let (_, address) = Hub::with("llama").serve();
    assert_snapshot!(error(&import(&folder, &address, &[("HF_HUB_DOWNLOAD_TIMEOUT", "0")]), &folder, &address), @r"
    error: cannot get the model `someone/small-1.5` from the Hugging Face hub: HF_HUB_DOWNLOAD_TIMEOUT is `0`
      hint: give a number of seconds
    ");
}

#[test]
fn headers_of_hub_name_no_files() {
    let folder = folder();
    let outside = "ETag: \"/outside\"\r\nX-Linked-ETag: \"../../../../outside\"\r\nX-Repo-Commit: ..\r\n";
    let (hub, address) = Hub::with("llama").which(Habit::AddsHeaders(outside)).serve();
    assert_imported(&import(&folder, &address, &[]), &folder, &hub);
    assert!(!files(&folder.path("")).into_keys().any(|path| path.ends_with("outside")));
}
