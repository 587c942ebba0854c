//! Access control: checks API keys, and keeps pages of other sites from using the server.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use subtle::{Choice, ConstantTimeEq};

use super::error::ApiError;

/// The cookie with the key for frames of the page, which cannot send headers. The page sets it for its reports only, for
/// ten seconds.
const COOKIE: &str = "tinderbox_key";

/// The accepted API keys.
#[derive(Clone)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Reads keys, one per line, and skips empty lines and lines that begin with `#`.
    ///
    /// # Errors
    /// If there are no keys, or one of them cannot be sent in a header; the error does not show it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let keys: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        if let Some((at, _)) = keys.iter().find(|(_, key)| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(format!(
                "has a key that no request can send, in line {at}\n  hint: write one key per line, of ASCII letters, digits \
                 and signs, without spaces"
            ));
        }
        let keys: Vec<String> = keys.into_iter().map(|(_, key)| key.to_owned()).collect();
        if keys.is_empty() { Err("has no keys\n  hint: write one key per line".to_owned()) } else { Ok(Self(keys)) }
    }

    /// Whether this is one of the keys. The time that it takes reveals only their lengths.
    fn contain(&self, key: &str) -> bool {
        let is = |known: &String| known.as_bytes().ct_eq(key.as_bytes());
        self.0.iter().map(is).fold(Choice::from(0), |any, one| any | one).into()
    }
}

/// Rejects requests that a page of another site may have sent.
///
/// Browsers send a page's site in `Origin`. To them, a name that its owner points at this machine is the same site, so
/// without a key `Host` must be an IP address or `localhost`, which no other site can own. Other sites may be
/// [allowed](allowed_origin).
pub(super) fn check_site(headers: &HeaderMap, needs_key: bool, is_allowed: bool) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host: Option<Authority> = host.and_then(|host| host.parse().ok());
    let host = host.ok_or_else(|| ApiError::bad_request("the request has no valid `Host`"))?;
    if !needs_key && !is_own(host.host()) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "`Host` is neither an IP address nor `localhost`; start the server with --api-key-file to use it by a name",
        ));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let site = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    if !is_allowed && site.is_none_or(|site| !site.eq_ignore_ascii_case(host.as_str())) {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "the request comes from a page of another site"));
    }
    Ok(())
}

/// The site of the page that sent a request, if it is one of `origins`.
pub(super) fn allowed_origin(headers: &HeaderMap, origins: &[String]) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin.as_bytes())).then(|| origin.clone())
}

/// The response to a browser that asks whether a page may send a request.
pub(super) fn preflight(headers: &HeaderMap) -> (StatusCode, HeaderMap) {
    let mut allowed = HeaderMap::new();
    allowed.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    allowed.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(names) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        allowed.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    (StatusCode::NO_CONTENT, allowed)
}

/// A site as browsers name it: `http://` or `https://`, a host and perhaps a port, and nothing else.
pub fn is_origin(text: &str) -> bool {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(|host| !host.contains('@') && host.parse::<Authority>().is_ok())
}

/// Whether this name cannot belong to another site.
fn is_own(host: &str) -> bool {
    let number = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || number.parse::<std::net::IpAddr>().is_ok()
}

/// Rejects requests without a valid key.
pub(super) fn check_key(headers: &HeaderMap, keys: &ApiKeys) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text(header::AUTHORIZATION).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer")).map(|(_, key)| key);
    let mut cookies = text(header::COOKIE).into_iter().flat_map(|cookies| cookies.split(';'));
    let cookie = cookies.find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    match bearer.or(cookie) {
        Some(key) if keys.contain(key.trim()) => Ok(()),
        _ => {
            let message = "this server needs an API key: send it as `Authorization: Bearer KEY`";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("invalid_api_key"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().expect("the value is valid in a header"));
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().expect("the value is valid in a header"));
        }
        headers
    }

    #[test]
    fn check_site_rejects_other_sites() {
        for (host, origin, by_number, with_key) in [
            ("127.0.0.1:8080", None, true, true),
            ("localhost", None, true, true),
            ("LocalHost:1", Some("http://localhost:1"), true, true),
            ("[::1]:8080", Some("http://[::1]:8080"), true, true),
            ("192.168.0.7:80", None, true, true),
            ("127.0.0.1:8080", Some("http://127.0.0.1:8081"), false, false),
            ("127.0.0.1:8080", Some("https://evil.example"), false, false),
            ("127.0.0.1:8080", Some("null"), false, false),
            ("localhost.evil.example", None, false, true),
            ("evil.example:8080", Some("http://evil.example:8080"), false, true),
            ("127.0.0.1.evil.example", None, false, true),
            ("", None, false, false),
            ("a b", None, false, false),
        ] {
            let headers = headers(host, origin);
            assert_eq!(check_site(&headers, false, false).is_ok(), by_number, "{host} {origin:?}");
            assert_eq!(check_site(&headers, true, false).is_ok(), with_key, "{host} {origin:?}");
        }
        assert!(check_site(&HeaderMap::new(), true, false).is_err(), "no host at all");
        let elsewhere = headers("evil.example", Some("https://friend.example"));
        assert!(check_site(&elsewhere, false, true).is_err(), "an allowed site does not make a name trustworthy");
    }

    #[test]
    fn allowed_origins_match_whole_sites() {
        let origins = ["https://friend.example".to_owned()];
        let is_allowed = |origin| allowed_origin(&headers("127.0.0.1", origin), &origins).is_some();
        assert!(is_allowed(Some("https://friend.example")) && is_allowed(Some("https://Friend.example")));
        for origin in ["http://friend.example", "https://friend.example:81", "https://friend.example.evil", "null"] {
            assert!(!is_allowed(Some(origin)), "{origin}");
        }
        assert!(!is_allowed(None));
        assert!(is_origin("http://localhost:3000") && is_origin("https://a.example"));
        for other in ["localhost:3000", "http://", "http://a/b", "http://u@a", "*", "file://x"] {
            assert!(!is_origin(other), "{other}");
        }
    }

    #[test]
    fn check_key_accepts_whole_keys() {
        for (text, part) in [
            ("# none\n\n", "has no keys"),
            ("one\n\ntwo words", "in line 3"),
            ("caf\u{e9}", "in line 1"),
            ("\u{feff}one", "in line 1"),
            ("a\u{7}b", "in line 1"),
        ] {
            assert!(ApiKeys::parse(text).is_err_and(|error| error.contains(part)), "{text}");
        }
        let keys = ApiKeys::parse("# two\n one \n\ntwo\n").expect("the text has two keys");
        for (name, value, is_let_in) in [
            (header::AUTHORIZATION, "Bearer one", true),
            (header::AUTHORIZATION, "bearer  two", true),
            (header::AUTHORIZATION, "one", false),
            (header::AUTHORIZATION, "Bearer", false),
            (header::AUTHORIZATION, "Bearer ", false),
            (header::AUTHORIZATION, "Bearer on", false),
            (header::AUTHORIZATION, "Bearer onee", false),
            (header::AUTHORIZATION, "Basic one", false),
            (header::AUTHORIZATION, "Bearer # two", false),
            (header::COOKIE, "tinderbox_key=one", true),
            (header::COOKIE, "a=b; tinderbox_key=two", true),
            (header::COOKIE, "tinderbox_key=on", false),
        ] {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            assert_eq!(check_key(&headers, &keys).is_ok(), is_let_in, "{value}");
        }
        assert!(check_key(&HeaderMap::new(), &keys).is_err());
    }
}
