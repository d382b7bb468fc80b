//! JSON by the character: whether a value goes on, is whole or is broken, and quoting.

/// Nesting beyond this is no value.
const MAX_DEPTH: usize = 256;

/// What one more character made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// It goes on; the character belongs to it.
    More,
    /// It is whole; the character was its last.
    Done,
    /// It was whole before the character, which is not part of it. Only numbers end like this.
    Before,
    /// It is no JSON.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A value must come.
    Value,
    /// A value or `]`.
    FirstItem,
    /// A key or `}`.
    FirstKey,
    Key,
    Colon,
    /// `,` or a closing bracket.
    After,
    /// In a string; whether it is a key.
    Text(bool),
    Escape(bool),
    /// So many hexadecimal digits are missing.
    Hex(bool, u8),
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Int,
    Dot,
    Fraction,
    E,
    Sign,
    Exponent,
}

/// One value under way.
#[derive(Clone, Debug)]
pub(super) struct JsonScan {
    state: State,
    /// Open brackets, innermost last: whether an object.
    open: Vec<bool>,
}

impl JsonScan {
    /// Before a value.
    pub fn new() -> Self {
        JsonScan { state: State::Value, open: Vec::new() }
    }

    /// Takes the next character. A control character in a string is let pass: [`put_control`] spells it rightly.
    pub fn step(&mut self, c: char) -> Scan {
        let blank = matches!(c, ' ' | '\t' | '\n' | '\r');
        match self.state {
            State::Value | State::FirstItem | State::FirstKey | State::Key | State::Colon | State::After
                if blank =>
            {
                Scan::More
            }
            State::FirstItem if c == ']' => self.close(false),
            State::FirstKey if c == '}' => self.close(true),
            State::FirstKey | State::Key if c == '"' => self.to(State::Text(true)),
            State::Colon if c == ':' => self.to(State::Value),
            State::Value | State::FirstItem => self.value(c),
            State::After => match (c, self.open.last()) {
                (',', Some(true)) => self.to(State::Key),
                (',', Some(false)) => self.to(State::Value),
                ('}', Some(true)) | (']', Some(false)) => self.close(c == '}'),
                _ => Scan::Broken,
            },
            State::Text(key) => match c {
                '"' if key => self.to(State::Colon),
                '"' => self.ended(),
                '\\' => self.to(State::Escape(key)),
                _ => Scan::More,
            },
            State::Escape(key) => match c {
                'u' => self.to(State::Hex(key, 4)),
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.to(State::Text(key)),
                _ => Scan::Broken,
            },
            State::Hex(key, left) if c.is_ascii_hexdigit() => match left {
                1 => self.to(State::Text(key)),
                _ => self.to(State::Hex(key, left - 1)),
            },
            State::Word(rest) if rest.starts_with(c) => match &rest[1..] {
                "" => self.ended(),
                rest => self.to(State::Word(rest)),
            },
            State::Number(n) => self.number(n, c),
            _ => Scan::Broken,
        }
    }

    /// Whether the value is whole where nothing follows: only a number can be.
    pub fn whole_at_end(&self) -> bool {
        self.open.is_empty() && matches!(self.state, State::Number(n) if n.ends())
    }

    /// Whether the value is an object, some of which has come.
    pub fn is_object(&self) -> bool {
        self.open.first() == Some(&true)
    }

    /// Whether the character just taken was inside a string.
    pub fn in_text(&self) -> bool {
        matches!(self.state, State::Text(_))
    }

    fn to(&mut self, state: State) -> Scan {
        self.state = state;
        Scan::More
    }

    fn value(&mut self, c: char) -> Scan {
        match c {
            '{' | '[' if self.open.len() == MAX_DEPTH => Scan::Broken,
            '{' | '[' => {
                self.open.push(c == '{');
                self.to(if c == '{' { State::FirstKey } else { State::FirstItem })
            }
            '"' => self.to(State::Text(false)),
            't' => self.to(State::Word("rue")),
            'f' => self.to(State::Word("alse")),
            'n' => self.to(State::Word("ull")),
            '-' => self.to(State::Number(Number::Minus)),
            '0' => self.to(State::Number(Number::Zero)),
            '1'..='9' => self.to(State::Number(Number::Int)),
            _ => Scan::Broken,
        }
    }

    fn number(&mut self, n: Number, c: char) -> Scan {
        use Number::*;
        let next = match (n, c) {
            (Minus, '0') => Zero,
            (Minus | Int, '0'..='9') => Int,
            (Zero | Int, '.') => Dot,
            (Dot | Fraction, '0'..='9') => Fraction,
            (Zero | Int | Fraction, 'e' | 'E') => E,
            (E, '+' | '-') => Sign,
            (E | Sign | Exponent, '0'..='9') => Exponent,
            _ if !n.ends() => return Scan::Broken,
            _ if self.open.is_empty() => return Scan::Before,
            _ => {
                self.state = State::After;
                return self.step(c);
            }
        };
        self.to(State::Number(next))
    }

    fn close(&mut self, object: bool) -> Scan {
        debug_assert_eq!(self.open.last(), Some(&object));
        self.open.pop();
        self.ended()
    }

    /// A value has ended; the outermost ends the scan.
    fn ended(&mut self) -> Scan {
        self.state = State::After;
        if self.open.is_empty() { Scan::Done } else { Scan::More }
    }
}

impl Number {
    fn ends(self) -> bool {
        matches!(self, Number::Zero | Number::Int | Number::Fraction | Number::Exponent)
    }
}

/// Appends a character of a JSON string's inside.
pub(super) fn put_char(out: &mut String, c: char) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        c => put_control(out, c),
    }
}

/// Appends a character of JSON text, control characters escaped.
pub(super) fn put_control(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
        c => out.push(c),
    }
}

/// Appends a JSON string.
pub(super) fn put_text(out: &mut String, text: &str) {
    out.push('"');
    text.chars().for_each(|c| put_char(out, c));
    out.push('"');
}

/// Whether a text is one JSON value.
pub(super) fn is_json(text: &str) -> bool {
    let mut scan = JsonScan::new();
    let mut done = false;
    for c in text.chars() {
        if done {
            if c.is_ascii_whitespace() {
                continue;
            }
            return false;
        }
        match scan.step(c) {
            Scan::More if (c as u32) < 0x20 && scan.in_text() => return false,
            Scan::More => {}
            Scan::Done => done = true,
            Scan::Before if c.is_ascii_whitespace() => done = true,
            Scan::Before | Scan::Broken => return false,
        }
    }
    done || scan.whole_at_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_the_library_reads_them() {
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        for text in [
            "1",
            "-0",
            "-",
            "01",
            "1.",
            "1.5e",
            "1.5e+3",
            "1 ",
            "true",
            "tru",
            "truex",
            "\"a\\u12aZ\"",
            "\"\\u12aF\"",
            "{}",
            "{\"a\":1,}",
            "{\"a\":1}",
            "[1,[2,{}],null]",
            "[1,]",
            "[",
            "]",
            "",
            " ",
            "\"\n\"",
            "{\"a\" 1}",
            "{a:1}",
            "[1 2]",
            " [ 1 , 2 ] ",
            "\"\\x\"",
            "1,",
            &deep,
        ] {
            let expected = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(is_json(text), expected, "{text}");
        }
        assert!(!is_json(&"[".repeat(100_000)));
    }

    #[test]
    fn quoting() {
        let mut out = String::new();
        put_text(&mut out, "a\"\\\n\u{1}é");
        assert_eq!(serde_json::from_str::<String>(&out).unwrap(), "a\"\\\n\u{1}é");
    }
}
