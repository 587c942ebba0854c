//! The page: its files, and data of its views that the API does not have.

use std::fs;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::ApiError;
use super::http::{json_response, name};
use super::library::ListedRun;
use super::service::{Service, Shared, Work};
use crate::run::{self, Checkpoint, Curves, Difference, RunDir, RunError, RunInfo, Status};
use crate::sweep;
use crate::tokenizer::TOKENIZER_CONFIG;
use crate::view;
use crate::view::report::{Comparison, Report};

/// The maximum number of settings shown of a run, and of characters of the first text that Look shows.
const MOST_SETTINGS: usize = 5;
const MOST_OPENING: usize = 90;
/// The first text for a run without samples.
const OPENING: &str = "\"I am tired,\" said the cat, because it was late";

/// A note on the sections that a report of the page leaves out.
const UNMEASURED: &str = "Attention and the patterns of heads are measured with the model: `tinderbox report` adds them, \
                          and Look shows them for any text.";

/// The number of points in a sparkline.
const N_SPARK: usize = 60;
/// The maximum number of runs in a comparison.
const MAX_COMPARED: usize = 12;

/// The page runs only its own scripts, and sends requests only to its own server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'self'";
/// A report brings its own policy, which allows one script by its hash.
const REPORT_POLICY: &str = "frame-ancestors 'self'";

const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

const MODULES: [(&str, &str); 12] = [
    ("api.js", include_str!("assets/api.js")),
    ("app.js", include_str!("assets/app.js")),
    ("branches.js", include_str!("assets/branches.js")),
    ("chat.js", include_str!("assets/chat.js")),
    ("checkpoints.js", include_str!("assets/checkpoints.js")),
    ("compare.js", include_str!("assets/compare.js")),
    ("look.js", include_str!("assets/look.js")),
    ("report.js", include_str!("assets/report.js")),
    ("runs.js", include_str!("assets/runs.js")),
    ("view.js", include_str!("assets/view.js")),
    ("why.js", include_str!("assets/why.js")),
    ("write.js", include_str!("assets/write.js")),
];

/// Whether an address is a file of the page; these are public.
pub(super) fn is_file(path: &str) -> bool {
    matches!(path, "/" | "/compare" | "/sweep") || path.starts_with("/run/") || path.starts_with("/assets/")
}

fn respond(kind: &'static str, policy: &'static str, body: String) -> Response {
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

/// The page, the same for all views.
pub(super) async fn index() -> Response {
    respond(HTML, POLICY, include_str!("assets/index.html").to_owned())
}

pub(super) async fn asset(path: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let (kind, text) = match &*name(path)? {
        "page.js" => (JS, view::app_assets().1),
        "page.css" => (CSS, view::app_assets().0),
        "app.css" => (CSS, include_str!("assets/app.css").to_owned()),
        "spark.svg" => ("image/svg+xml", view::html::SPARK.to_owned()),
        name => match MODULES.iter().find(|(module, _)| *module == name) {
            Some((_, text)) => (JS, (*text).to_owned()),
            None => return Err(ApiError::no_route("GET", &format!("/assets/{name}"))),
        },
    };
    Ok(respond(kind, POLICY, text))
}

/// The runs, with sparklines of their losses.
pub(super) async fn runs(State(service): State<Shared>) -> Result<Response, ApiError> {
    let runs = |service: &Service| {
        let listed = service.library.runs();
        let dirs: Vec<RunDir> = listed.iter().map(|listed| listed.run.clone()).collect();
        let differences = run::differences(&dirs).unwrap_or_default();
        let json = |(at, run): (usize, &ListedRun)| {
            let mut json = run_json(run, at, &differences);
            json["base"] = base(&listed, &run.run).into();
            json
        };
        let runs: Vec<Value> = listed.iter().enumerate().map(json).collect();
        Ok(json_response(json!({"runs": runs, "has_sweep": sweep_page(service).is_some()}).to_string()))
    };
    service.off_thread(Work::Long, runs).await
}

/// The sizes of a run's model, whether it has a chat template, and the checkpoints it keeps, for the run's views.
pub(super) fn run(service: &Service, name: &str) -> Result<Response, ApiError> {
    let ListedRun { run, checkpoint, .. } = service.library.run(name)?;
    let best = checkpoint.map(|(path, _)| path);
    let kept = run.kept().unwrap_or_default().into_iter().map(|(step, path)| {
        let model = path.file_name().map(|checkpoint| format!("{name}/{}", checkpoint.to_string_lossy()));
        json!({"step": step, "model": model, "is_best": best.as_ref() == Some(&path)})
    });
    let generate = run.config().map(|config| config.generate).unwrap_or_default();
    // A named model is the one that was opened, even if its run has been replaced.
    let (config, has_chat) = if let Some(model) = service.library.named(Some(name)) {
        (model.config.clone(), model.tokenizer.chat_template().is_some())
    } else {
        let config = run.config().map_err(unreadable)?;
        let tokenizer = run.tokenizer_of_model(&config).map_err(unreadable)?;
        (config.model, tokenizer.chat_template().is_some())
    };
    let json = json!({
        "n_layers": config.n_layers,
        "n_heads": config.n_heads,
        "context_length": config.context_length,
        "has_chat": has_chat,
        "prompt": opening(&run),
        "sampling": {
            "temperature": generate.temperature,
            "top_k": generate.top_k,
            "top_p": generate.top_p,
            "min_p": generate.min_p,
            "repetition_penalty": generate.repetition_penalty,
            "presence_penalty": generate.presence_penalty,
            "frequency_penalty": generate.frequency_penalty,
        },
        "stop": generate.stop,
        "base": base(&service.library.runs(), &run),
        "checkpoints": kept.collect::<Vec<_>>(),
    });
    Ok(json_response(json.to_string()))
}

/// The run on the page that a run was tuned from.
fn base(listed: &[ListedRun], run: &RunDir) -> Option<String> {
    let last = run.last().ok()?;
    let base = Checkpoint::read_state(&last).ok()?.base(&last)?.canonicalize().ok()?;
    let is_base = |listed: &&ListedRun| listed.run.root().canonicalize().is_ok_and(|root| base.starts_with(root));
    listed.iter().find(is_base).map(|listed| listed.name.clone())
}

/// Whether a run has a chat template, from its file alone: the runs are listed every few seconds.
fn has_chat(run: &RunDir) -> bool {
    let json = fs::read(run.join(TOKENIZER_CONFIG)).ok().and_then(|json| serde_json::from_slice::<Value>(&json).ok());
    json.is_some_and(|config| !config["chat_template"].is_null())
}

/// The current report of a run: from its files, without measuring anything.
pub(super) fn report(service: &Service, name: &str) -> Result<Response, ApiError> {
    let report = Report::read(&service.library.run(name)?.run);
    let mut report = report.map_err(|error| ApiError::unavailable(crate::format::first_line(&error)))?;
    report.note(UNMEASURED.to_owned());
    Ok(respond(HTML, REPORT_POLICY, report.html()))
}

/// The page of the sweep whose runs are in the folder.
fn sweep_page(service: &Service) -> Option<String> {
    let page = service.options.folder.as_ref()?.canonicalize().ok()?.parent()?.join(sweep::PAGE);
    fs::read_to_string(page).ok().filter(|page| view::html::is_page(page))
}

/// That page, which brings its own policy.
pub(super) fn sweep(service: &Service) -> Result<Response, ApiError> {
    let page = sweep_page(service).ok_or_else(|| ApiError::no_route("GET", "/app/sweep"))?;
    Ok(respond(HTML, REPORT_POLICY, page))
}

/// Several runs on one page; their names are one per line.
pub(super) fn comparison(service: &Service, names: &str) -> Result<Response, ApiError> {
    let names: Vec<&str> = names.lines().collect();
    if !(2..=MAX_COMPARED).contains(&names.len()) {
        return Err(ApiError::bad_request(format!("2 to {MAX_COMPARED} runs can be compared, one per line")));
    }
    let run = |name: &&str| Ok(service.library.run(name)?.run);
    let runs = names.iter().map(run).collect::<Result<Vec<_>, ApiError>>()?;
    let comparison = Comparison::read(&runs);
    let comparison = comparison.map_err(|error| ApiError::unavailable(crate::format::first_line(&error)))?;
    Ok(respond(HTML, REPORT_POLICY, comparison.html()))
}

fn unreadable(error: impl Into<RunError>) -> ApiError {
    ApiError::unavailable(error.into().first_line())
}

/// The settings in which the run at this place differs from the others, as `n_layers=4 learning_rate=0.003`. An imported
/// model has only those of the model.
fn settings(differences: &[Difference], at: usize, is_imported: bool) -> String {
    let known = differences.iter().filter_map(|Difference { key, values }| {
        let (section, name) = key.split_once('.')?;
        (section == "model" || !is_imported).then_some(())?;
        Some(format!("{name}={}", values[at].as_ref()?))
    });
    known.take(MOST_SETTINGS).collect::<Vec<_>>().join(" ")
}

/// The first text that Look shows: the beginning of the run's last sample, or a sentence.
fn opening(run: &RunDir) -> String {
    let newest = run::samples(run).ok().and_then(|samples| Some(samples.last()?.text.clone()));
    let text = newest.map(|text| text.trim().chars().take(MOST_OPENING).collect::<String>()).unwrap_or_default();
    // Cut after a whole word.
    let text = if text.chars().count() < MOST_OPENING { &*text } else { text.rsplit_once(' ').map_or("", |it| it.0) };
    if text.is_empty() { OPENING.to_owned() } else { text.to_owned() }
}

/// A row in the table of runs; unreadable values are null.
fn run_json(listed: &ListedRun, at: usize, differences: &[Difference]) -> Value {
    let ListedRun { name, run, checkpoint } = listed;
    let info = RunInfo::read(run).ok();
    let is_imported = info.as_ref().is_some_and(|info| info.status == Status::Imported);
    let curve = Curves::read(run).map(|curves| curves.column("train_loss")).unwrap_or_default();
    let losses: Vec<f64> = curve.into_iter().map(|(_, loss)| loss).collect();
    json!({
        "name": name,
        "has_checkpoint": checkpoint.is_some(),
        "has_chat": has_chat(run),
        "status": info.as_ref().map(|info| info.status),
        "step": info.as_ref().map(|info| info.step),
        "max_steps": info.as_ref().and_then(|info| info.max_steps),
        "parameters": info.as_ref().and_then(|info| info.parameters),
        "loss": info.as_ref().and_then(|info| info.val_loss),
        "bits_per_byte": info.as_ref().and_then(|info| info.val_bits_per_byte),
        "age": info.as_ref().and_then(|info| info.began_unix_s).map(|began| (run::unix_s() - began).max(0.0)),
        "settings": settings(differences, at, is_imported),
        "is_estimate": info.as_ref().is_some_and(|info| info.is_estimate),
        "curve": view::terminal::sparkline::means(&losses, N_SPARK),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_import_only_known_modules() {
        for (name, text) in MODULES {
            assert!(!text.contains('\r') && !text.contains("innerHTML"), "{name}");
            let mut cookies = text.lines().filter(|line| line.contains("document.cookie"));
            assert!(cookies.all(|line| line.contains("max-age=10`")), "{name}: the key does not outlast the tab");
            let imported = text.split(" from \"./").skip(1).filter_map(|rest| rest.split_once('"'));
            for (module, _) in imported {
                assert!(MODULES.iter().any(|(known, _)| *known == module), "{name} imports {module}");
            }
        }
    }
}
