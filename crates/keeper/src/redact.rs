//! What looks like a credential, left out of what an agent says on standard error. There is this one place for it: the log on
//! disk, the exit record, and whatever is made of that (journals, answers, exports) all come from what passed through here.
//!
//! Two errors are possible, and neither can be ruled out: a credential of a shape that is not known passes, and a harmless word
//! that looks like one is left out. The agent's own protocol is not looked into; what it says there is its conversation.

use std::borrow::Cow;

/// What stands in place of a credential.
pub const MARK: &str = "[redacted]";

/// Words that begin so are keys of widely used services.
const KEY_PREFIXES: [&str; 26] = [
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "pk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "hf_",
    "npm_",
    "pypi-",
    "dop_v1_",
    "eyJ",
];
/// The shortest word that counts as such a key: shorter ones are words of a sentence ("sk-learn").
const MIN_KEY: usize = 16;
/// Names whose value is a credential, where the value looks like one at all.
const NAMES: [&str; 7] = ["api_key", "apikey", "api-key", "token", "secret", "password", "authorization"];
/// Schemes whose next word is a credential.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// The shortest word after a scheme that counts.
const MIN_AFTER_SCHEME: usize = 8;

/// Reads lines in their order; a private key spans several.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Lines of a private key so far; None: outside of one.
    in_private_key: Option<usize>,
}

/// The longest private key, in lines. What goes on longer is none: words about keys begin as keys do.
const MAX_KEY_LINES: usize = 100;
/// What may stand before the body of an encrypted private key.
const KEY_HEADERS: [&str; 2] = ["Proc-Type:", "DEK-Info:"];

/// Whether a line can be of a private key, behind its first one.
fn is_of_key(line: &str) -> bool {
    let line = line.trim();
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    line.bytes().all(base64) || KEY_HEADERS.iter().any(|header| line.starts_with(header))
}

/// Whether a word is, or ends with, a name whose value is a credential.
fn is_name(word: &str) -> bool {
    let word = word.trim_end_matches(TIES).to_ascii_lowercase();
    NAMES.iter().any(|name| word.ends_with(name))
}

/// What ties a name to its value, beside what only quotes.
const TIES: [char; 2] = [':', '='];

/// A name whose value may be one of the next words.
#[derive(Clone, Copy)]
struct Named {
    /// Where what was read of it ends.
    end: usize,
    /// A sign that ties it to a value was read.
    tied: bool,
}

impl Named {
    /// The name that holds for the word at `at`: between them stands only what quotes.
    fn reaching(self, line: &str, at: usize) -> Option<Self> {
        let between = line.get(self.end..at)?;
        between.chars().all(|sign| matches!(sign, '"' | '\'' | '\\' | ' ' | '\t')).then_some(self)
    }
}

impl Redactor {
    /// A line as it may be kept.
    pub fn line<'line>(&mut self, line: &'line str) -> Cow<'line, str> {
        let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
        let lines = if begins { Some(0) } else { self.in_private_key };
        let ends = line.contains("-----END");
        self.in_private_key = None;
        if let Some(lines) =
            lines.filter(|lines| begins || ends || (*lines < MAX_KEY_LINES && is_of_key(line)))
        {
            self.in_private_key = (!ends).then_some(lines + 1);
            let end = if line.ends_with('\n') { "\n" } else { "" };
            return Cow::Owned(format!("{MARK}{end}"));
        }
        let mut out: Option<String> = None;
        let mut written = 0;
        let mut after_scheme = false;
        let mut named = None;
        for (at, word) in words(line) {
            let before = named.and_then(|named: Named| named.reaching(line, at));
            let of_name = before.filter(|named| named.tied && looks_secret(word)).map(|_| word);
            let value = of_name.or_else(|| credential(word, after_scheme));
            let end = at + word.len();
            named = match before {
                Some(_) if word.chars().all(|sign| TIES.contains(&sign)) => Some(Named { end, tied: true }),
                _ => is_name(word).then(|| Named { end, tied: word.ends_with(TIES) }),
            };
            after_scheme = SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme));
            let Some(value) = value else { continue };
            let begin = at + word.len() - value.len();
            let out = out.get_or_insert_default();
            out.push_str(line.get(written..begin).unwrap_or_default());
            out.push_str(MARK);
            written = begin + value.len();
        }
        match out {
            None => Cow::Borrowed(line),
            Some(mut out) => {
                out.push_str(line.get(written..).unwrap_or_default());
                Cow::Owned(out)
            }
        }
    }
}

/// Runs of what credentials consist of, and of what ties a name to its value, with their places.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+/=:~%".contains(&byte);
    let bytes = line.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        let begin = at + bytes.get(at..)?.iter().position(|byte| belongs(*byte))?;
        let rest = bytes.get(begin..)?;
        let length = rest.iter().position(|byte| !belongs(*byte)).unwrap_or(rest.len());
        at = begin + length;
        Some((begin, line.get(begin..at)?))
    })
}

/// The end of a word that is a credential.
fn credential(word: &str, after_scheme: bool) -> Option<&str> {
    if after_scheme && word.len() >= MIN_AFTER_SCHEME {
        return Some(word);
    }
    // The value in `name=value` and `name:value`; a web address has a name before its colon too.
    let value =
        word.rsplit_once(['=', ':']).filter(|(_, value)| !value.is_empty()).map_or(word, |(_, value)| value);
    let is_key =
        |word: &str| word.len() >= MIN_KEY && KEY_PREFIXES.iter().any(|prefix| word.starts_with(prefix));
    if is_key(value) {
        return Some(value);
    }
    let lower = word.to_ascii_lowercase();
    let named = value.len() < word.len() && NAMES.iter().any(|name| lower.contains(name));
    (named && looks_secret(value)).then_some(value)
}

/// Whether the value of such a name is one that nobody would say in a sentence.
fn looks_secret(value: &str) -> bool {
    value.len() >= MIN_KEY
        && value.bytes().any(|byte| byte.is_ascii_alphabetic())
        && value.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(text: &str) -> String {
        let mut redactor = Redactor::default();
        text.split_inclusive('\n').map(|line| redactor.line(line).into_owned()).collect()
    }

    #[test]
    fn credentials_are_left_out_and_what_stands_around_them_is_kept() {
        for (line, kept) in [
            ("key sk-a1B2c3D4e5F6g7H8i9J0 refused", "key [redacted] refused"),
            ("(ghp_0123456789abcdefghijABCDEFGHIJ012345)", "([redacted])"),
            ("url=https://x.test/?key=AKIAIOSFODNN7EXAMPLE&b", "url=https://x.test/?key=[redacted]&b"),
            ("xoxb-123456789012-abcdefghijklmno\n", "[redacted]\n"),
            ("Authorization: Bearer abcdefgh-1", "Authorization: Bearer [redacted]"),
            ("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic [redacted]"),
            ("OPENAI_API_KEY=0123456789abcdef0 is wrong", "OPENAI_API_KEY=[redacted] is wrong"),
            ("\"token\":\"eyJhbGciOi.eyJzdWIiOi.dozjgNryP4J3\"", "\"token\":\"[redacted]\""),
            ("{\"api_key\":\"0123456789abcdef0\"}", "{\"api_key\":\"[redacted]\"}"),
            ("{\\\"token\\\": \\\"0123456789abcdef0\\\"}", "{\\\"token\\\": \\\"[redacted]\\\"}"),
            ("api_key: 0123456789abcdef0", "api_key: [redacted]"),
            ("x-api-key = '0123456789abcdef0'", "x-api-key = '[redacted]'"),
            ("Authorization: 0123456789abcdef0==", "Authorization: [redacted]"),
            ("sk-a1B2c3D4e5F6g7H8i9J0 sk-a1B2c3D4e5F6g7H8i9J1", "[redacted] [redacted]"),
        ] {
            assert_eq!(redacted(line), kept, "{line}");
        }
        let key =
            "before\n-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----\nafter\n";
        assert_eq!(redacted(key), "before\n[redacted]\n[redacted]\n[redacted]\n[redacted]\nafter\n");
    }

    #[test]
    fn words_about_a_private_key_hide_nothing_that_follows() {
        let said = "no -----BEGIN PRIVATE KEY----- was found\nthe next line\n";
        assert_eq!(redacted(said), "[redacted]\nthe next line\n");
        let long = format!("-----BEGIN PRIVATE KEY-----\n{}", "word\n".repeat(2 * MAX_KEY_LINES));
        assert_eq!(redacted(&long).matches("word").count(), MAX_KEY_LINES + 1);
    }

    #[test]
    fn what_is_no_credential_is_kept_as_it_is() {
        for line in [
            "permission denied: /home/user/project/src/main.rs:12:5",
            "sk-learn is not installed, é → 😀",
            "unexpected token: identifier at line 12",
            "the bearer is unknown",
            "GET https://api.test:8443/v1/models?limit=20 404",
            "the token 0123456789abcdef0 was refused",
            "token: expected-a-closing-parenthesis",
            "",
            "\n",
        ] {
            assert_eq!(redacted(line), line);
        }
    }
}
