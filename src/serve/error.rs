//! Errors, in the format that OpenAI's clients read.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;

use crate::format::cut_in_the_middle;

/// The maximum number of characters of a request that an error repeats.
pub(super) const MAX_ECHOED: usize = 100;

fn echoed(text: &str) -> String {
    cut_in_the_middle(text, MAX_ECHOED)
}

/// The reason why a request was rejected or failed.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status, code, param: None, message: message.into(), retry_after_s: None }
    }

    /// 400: the request as a whole is invalid.
    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, None, message)
    }

    /// 400: a field has an invalid value.
    pub(super) fn field(name: &str, message: impl Into<String>) -> Self {
        Self { param: Some(name.to_owned()), ..Self::bad_request(message) }
    }

    /// 400: the prompt does not fit the context.
    pub(super) fn too_long(name: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::field(name, message) }
    }

    /// 401.
    pub(super) fn no_key() -> Self {
        let message = "this server needs an API key: send it as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
    }

    /// 403: a page of another site sent the request, or `Host` is not a name of this server.
    pub(super) fn elsewhere(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, None, message)
    }

    /// 404: no such address.
    pub(super) fn no_route(method: &str, path: &str) -> Self {
        let message = format!("there is no {method} {}; /openapi.json lists all routes", echoed(path));
        Self::new(StatusCode::NOT_FOUND, None, message)
    }

    /// 404: no such model.
    pub(super) fn no_model(name: &str, known: &[&str]) -> Self {
        let message = format!("there is no model `{}`; there is {}", echoed(name), known.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, Some("model_not_found"), message);
        Self { param: Some("model".to_owned()), ..error }
    }

    /// 405.
    pub(super) fn wrong_method(method: &str, path: &str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, None, format!("{} does not take {method}", echoed(path)))
    }

    /// 408: the body did not arrive in time.
    pub(super) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, None, "the body of the request did not arrive in time")
    }

    /// 409: the checkpoint of this model has been removed or replaced.
    pub(super) fn gone() -> Self {
        let message = "the checkpoint of this model was removed or replaced before it was inspected; request another checkpoint of \
                       the run, or restart the server";
        Self::new(StatusCode::CONFLICT, Some("checkpoint_removed"), message)
    }

    /// 413.
    pub(super) fn too_large(limit: usize) -> Self {
        let message = format!("the body of a request has at most {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, None, message)
    }

    /// 429: too many requests are in progress.
    pub(super) fn busy(reason: &str) -> Self {
        let message = format!("{reason}; try again later");
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, Some("rate_limit_exceeded"), message);
        Self { retry_after_s: Some(1), ..error }
    }

    /// 500: the model or its device failed.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, None, message)
    }

    /// 500: a thread panicked; its message is on standard error.
    pub(super) fn bug() -> Self {
        Self::failed("the request met a bug in tinderbox")
    }

    /// 503.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, None, message)
    }

    /// 503: the server finishes requests in progress and takes no others.
    pub(super) fn stopping() -> Self {
        Self::unavailable("the server is stopping")
    }

    /// The body of the response, as JSON.
    pub(super) fn body(&self) -> String {
        let r#type = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let error = ErrorFields { message: &self.message, r#type, param: self.param.as_deref(), code: self.code };
        serde_json::to_string(&ErrorBody { error }).expect("an error has a JSON form")
    }
}

/// The body of a response with an error.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(super) struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize, JsonSchema)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, self.body()).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
