//! Splits text into tokens.

use super::diagnostic::Diagnostic;

/// One token. Everything borrows from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `axpy`, `%r1`, `$L__BB0_2`.
    Word(&'a str),
    /// `.f32`, without the dot.
    Dot(&'a str),
    /// `16`, `0x1F`, `0f3F800000`, `1.5`.
    Number(&'a str),
    /// A quoted text, without the quotes.
    Text(&'a str),
    /// Any of the characters in [`MARKS`].
    Mark(u8),
}

/// A token and its line, from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexeme<'a> {
    pub(crate) token: Token<'a>,
    pub(crate) line: u32,
}

const MARKS: &[u8] = b"{}[]()<>,;:=@!|+-*/&~?^";

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Splits `source` into tokens, stopping at the first character that can't occur in PTX.
pub(crate) fn tokens(source: &str) -> Result<Vec<Lexeme<'_>>, Diagnostic> {
    let mut lexer = Lexer { source, at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(lexeme) = lexer.next()? {
        found.push(lexeme);
    }
    Ok(found)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    fn peek(&self, ahead: usize) -> u8 {
        self.source.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Advances as long as `accept` returns true and returns the text in between. Only ASCII is accepted, so slicing is
    /// sound.
    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        let rest = &self.source.as_bytes()[start..];
        self.at += rest.iter().position(|&byte| !accept(byte)).unwrap_or(rest.len());
        self.source.get(start..self.at).unwrap_or("")
    }

    fn next(&mut self) -> Result<Option<Lexeme<'a>>, Diagnostic> {
        self.skip_blanks()?;
        if self.at >= self.source.len() {
            return Ok(None);
        }
        let line = self.line;
        let token = match self.peek(0) {
            b'"' => self.text()?,
            b'.' if is_word(self.peek(1)) => {
                self.at += 1;
                Token::Dot(self.take_while(|byte| is_word(byte) || byte == b':'))
            }
            byte if byte.is_ascii_digit() => Token::Number(self.number()),
            byte if is_word_start(byte) => {
                let start = self.at;
                self.at += 1;
                self.take_while(is_word);
                Token::Word(self.source.get(start..self.at).unwrap_or(""))
            }
            byte if MARKS.contains(&byte) => {
                self.at += 1;
                Token::Mark(byte)
            }
            _ => {
                let sign = self.source.get(self.at..).and_then(|rest| rest.chars().next());
                return Err(Diagnostic::new(line, format!("unexpected {:?}", sign.unwrap_or('?'))));
            }
        };
        Ok(Some(Lexeme { token, line }))
    }

    fn skip_blanks(&mut self) -> Result<(), Diagnostic> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => {
                    self.at = self.source[self.at..].find('\n').map_or(self.source.len(), |n| self.at + n);
                }
                (b'/', b'*') => {
                    let Some(length) = self.source[self.at + 2..].find("*/") else {
                        return Err(Diagnostic::new(self.line, "a comment is not closed"));
                    };
                    let comment = &self.source.as_bytes()[self.at..self.at + 2 + length];
                    self.line += comment.iter().filter(|&&byte| byte == b'\n').count() as u32;
                    self.at += length + 4;
                }
                // The text that NVRTC returns includes the NUL that ends a C string.
                (0, _) if self.at < self.source.len() && self.rest_is_nul() => self.at = self.source.len(),
                _ => return Ok(()),
            }
        }
    }

    fn rest_is_nul(&self) -> bool {
        self.source.as_bytes()[self.at..].iter().all(|&byte| byte == 0)
    }

    fn text(&mut self) -> Result<Token<'a>, Diagnostic> {
        self.at += 1;
        let start = self.at;
        let rest = &self.source.as_bytes()[start..];
        match rest.iter().position(|&byte| byte == b'"' || byte == b'\n') {
            Some(length) if rest[length] == b'"' => {
                self.at += length + 1;
                Ok(Token::Text(self.source.get(start..start + length).unwrap_or("")))
            }
            _ => Err(Diagnostic::new(self.line, "a text has no closing quote")),
        }
    }

    fn number(&mut self) -> &'a str {
        let start = self.at;
        self.take_while(|byte| byte.is_ascii_alphanumeric());
        let is_hexadecimal = self.source.as_bytes()[start] == b'0'
            && matches!(self.source.as_bytes().get(start + 1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D'));
        if !is_hexadecimal {
            if self.peek(0) == b'.' {
                self.at += 1;
                self.take_while(|byte| byte.is_ascii_alphanumeric());
            }
            let ends_in_e = matches!(self.source.as_bytes()[self.at - 1], b'e' | b'E');
            if ends_in_e && matches!(self.peek(0), b'+' | b'-') {
                self.at += 1;
                self.take_while(|byte| byte.is_ascii_digit());
            }
        }
        self.source.get(start..self.at).unwrap_or("")
    }
}
