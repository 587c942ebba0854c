//! Parts of requests and responses that several handlers share: names, ids, times, JSON.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};

use super::error::ApiError;

/// The variable part of an address.
pub(super) fn name(path: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    path.map(|Path(name)| name).map_err(|_| ApiError::bad_request("the address is not UTF-8"))
}

pub(super) fn json_response(json: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.into()).into_response()
}

/// A value of our own types as JSON.
pub(super) fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("our own types have a JSON form")
}

/// As [`to_json`], for a value whose JSON has about `n_bytes`: growing it would need as much again.
pub(super) fn to_large_json(value: &impl Serialize, n_bytes: usize) -> String {
    let mut json = Vec::with_capacity(n_bytes);
    serde_json::to_writer(&mut json, value).expect("our own types have a JSON form");
    String::from_utf8(json).expect("JSON is UTF-8")
}

/// A list whose items are made while they are serialized: those of a large response need several times its size.
pub(super) struct Lazy<I>(Cell<Option<I>>);

impl<I: Iterator<Item: Serialize>> Lazy<I> {
    pub(super) fn new(items: impl IntoIterator<IntoIter = I>) -> Self {
        Self(Cell::new(Some(items.into_iter())))
    }
}

impl<I: Iterator<Item: Serialize>> Serialize for Lazy<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().expect("a body is serialized once"))
    }
}

/// An unpredictable number below 2^63.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(SystemTime::now()) >> 1
}

/// A time in seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
