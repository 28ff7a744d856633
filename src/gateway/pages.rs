//! The files of the demo page, built into the program. Never reads a disk, so no path can leave a folder.

/// One file.
#[derive(Debug)]
pub(super) struct Page {
    path: &'static str,
    pub(super) kind: &'static str,
    pub(super) body: &'static [u8],
}

/// The file at a path, if there is one.
pub(super) fn find(path: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.path == path)
}

const PAGES: [Page; 6] = [
    Page {
        path: "/",
        kind: "text/html; charset=utf-8",
        body: include_bytes!("../../clients/browser/index.html"),
    },
    Page { path: "/app.js", kind: SCRIPT, body: include_bytes!("../../clients/browser/app.js") },
    Page {
        path: "/capture.worklet.js",
        kind: SCRIPT,
        body: include_bytes!("../../clients/browser/capture.worklet.js"),
    },
    Page {
        path: "/style.css",
        kind: "text/css; charset=utf-8",
        body: include_bytes!("../../clients/browser/style.css"),
    },
    Page { path: "/icon.svg", kind: "image/svg+xml", body: include_bytes!("../../clients/browser/icon.svg") },
    Page {
        path: "/sample.wav",
        kind: "audio/wav",
        body: include_bytes!("../../clients/sample/two_cities.wav"),
    },
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn only_listed_paths_are_served() {
        assert!(find("/").is_some_and(|page| page.body.starts_with(b"<!")));
        for path in ["", "//", "/../Cargo.toml", "/index.html/", "/%2e%2e/", "/APP.JS"] {
            assert!(find(path).is_none(), "{path}");
        }
    }
}
