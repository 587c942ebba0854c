//! Errors, in the format that OpenAI's clients read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::format::cut_in_the_middle;

/// The maximum length of a message in characters, which may quote a request.
const MAX_MESSAGE: usize = 2000;

/// The part of a request that an error repeats.
pub(super) fn echoed(text: &str) -> String {
    cut_in_the_middle(text, 100)
}

/// The reason why a request was rejected or failed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(super) struct ApiError {
    #[serde(skip)]
    status: StatusCode,
    pub(super) message: String,
    r#type: &'static str,
    /// The field concerned.
    pub(super) param: Option<String>,
    pub(super) code: Option<&'static str>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ErrorBody<'a> {
    error: &'a ApiError,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let r#type = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let message = cut_in_the_middle(&message.into(), MAX_MESSAGE);
        Self { status, message, r#type, param: None, code: None }
    }

    pub(super) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    pub(super) fn param(self, name: &str) -> Self {
        Self { param: Some(echoed(name)), ..self }
    }

    /// 400: the request as a whole is invalid.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400: a field has an invalid value.
    pub(super) fn field(name: &str, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(name)
    }

    /// 400: the prompt does not fit the context.
    pub(super) fn too_long(name: &str, message: impl Into<String>) -> Self {
        Self::field(name, message).code("context_length_exceeded")
    }

    /// 404: no such address.
    pub(super) fn no_route(method: &str, path: &str) -> Self {
        let message = format!("there is no {method} {}; /openapi.json lists all routes", echoed(path));
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 429: too many requests are in progress.
    pub(super) fn busy(reason: &str) -> Self {
        let message = format!("{reason}; try again later");
        Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("rate_limit_exceeded")
    }

    /// 500: the model or its device failed.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// 500: a thread panicked; its message is on standard error.
    pub(super) fn bug() -> Self {
        Self::failed("the request met a bug in tinderbox")
    }

    /// 503.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// 503: a request took too long.
    pub(super) fn late() -> Self {
        Self::unavailable("the request took longer than the server allows")
    }

    /// 503: the server finishes requests in progress and takes no others.
    pub(super) fn stopping() -> Self {
        Self::unavailable("the server is stopping")
    }

    /// The body of the response, as JSON.
    pub(super) fn body(&self) -> String {
        serde_json::to_string(&ErrorBody { error: self }).expect("an error has a JSON form")
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], self.body()).into_response();
        let header = match self.status {
            StatusCode::TOO_MANY_REQUESTS => Some((header::RETRY_AFTER, "1")),
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer")),
            _ => None,
        };
        response.headers_mut().extend(header.map(|(name, value)| (name, HeaderValue::from_static(value))));
        response
    }
}
