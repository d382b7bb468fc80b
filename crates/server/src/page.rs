//! The chat page: one file that asks for nothing but this server's own paths.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{Html, IntoResponse, Response};

const CHAT: &str = include_str!("page/chat.html");

/// What the page may do: run its own script, and talk to the server that it came from.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                      connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

/// `GET /`.
pub fn chat() -> Response {
    let fixed = HeaderValue::from_static;
    let headers = [
        (header::CONTENT_SECURITY_POLICY, fixed(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        (header::REFERRER_POLICY, fixed("no-referrer")),
        (header::CACHE_CONTROL, fixed("no-cache")),
        (HeaderName::from_static("cross-origin-opener-policy"), fixed("same-origin")),
    ];
    (headers, Html(CHAT)).into_response()
}

#[cfg(test)]
mod tests {
    use super::CHAT;

    /// What a model says becomes text nodes; the page names no other host, but for examples of addresses.
    #[test]
    fn the_page_reads_nothing_as_html_and_fetches_nothing_from_elsewhere() {
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "<link rel=\"style"]
        {
            assert!(!CHAT.contains(forbidden), "{forbidden}");
        }
        let hosts: Vec<&str> =
            CHAT.match_indices("://").map(|(i, _)| &CHAT[i..(i + 24).min(CHAT.len())]).collect();
        // The name space of its picture; the marks of addresses in its regular expression have escapes.
        assert_eq!(hosts, ["://www.w3.org/2000/svg' "], "{hosts:?}");
        assert!(!CHAT.contains("src=\"") && !CHAT.contains("import("));
    }
}
