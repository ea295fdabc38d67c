//! A position in the token stream, with methods that read marks, names, and numbers there.

use crate::diagnostic::Diagnostic;
use crate::lexer::{Lexeme, Token};
use crate::number::{self, Number};

pub(crate) type Parsed<T> = Result<T, Diagnostic>;

pub(crate) struct Parser<'a> {
    tokens: &'a [Lexeme<'a>],
    pub(crate) at: usize,
    pub(crate) diagnostics: Vec<Diagnostic>,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(tokens: &'a [Lexeme<'a>]) -> Self {
        Self { tokens, at: 0, diagnostics: Vec::new() }
    }

    pub(crate) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|lexeme| lexeme.token)
    }

    pub(crate) fn peek_after(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at + 1).map(|lexeme| lexeme.token)
    }

    pub(crate) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |lexeme| lexeme.line)
    }

    pub(crate) fn error<T>(&self, text: impl Into<String>) -> Parsed<T> {
        Err(Diagnostic::new(self.line(), text))
    }

    pub(crate) fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match self.peek() {
            None => "the text ends unexpectedly".to_owned(),
            Some(Token::Word(word)) => format!("`{word}`"),
            Some(Token::Dot(word)) => format!("`.{word}`"),
            Some(Token::Number(number)) => format!("`{number}`"),
            Some(Token::Text(text)) => format!("{text:?}"),
            Some(Token::Mark(mark)) => format!("`{}`", char::from(mark)),
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    pub(crate) fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, mark: u8) -> Parsed<()> {
        if self.accept(mark) { Ok(()) } else { self.unexpected(&format!("`{}`", char::from(mark))) }
    }

    pub(crate) fn accept_dot(&mut self, name: &str) -> bool {
        let found = self.peek() == Some(Token::Dot(name));
        self.at += usize::from(found);
        found
    }

    pub(crate) fn word(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a name"),
        }
    }

    pub(crate) fn dot(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(Token::Dot(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a directive"),
        }
    }

    pub(crate) fn number(&mut self) -> Parsed<Number> {
        let negative = self.accept(b'-');
        match self.peek() {
            Some(Token::Number(text)) => match number::parse(text) {
                Some(number) => {
                    self.at += 1;
                    Ok(if negative { number.negated() } else { number })
                }
                None => self.unexpected("a number"),
            },
            _ => self.unexpected("a number"),
        }
    }

    pub(crate) fn integer(&mut self) -> Parsed<i64> {
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.error("expected an integer"),
        }
    }

    pub(crate) fn small(&mut self) -> Parsed<u32> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.error(format!("{value} is out of range")))
    }

    /// Skips everything up to and including the next `;`, or up to a brace that opens or closes a block.
    pub(crate) fn recover(&mut self) {
        while let Some(token) = self.peek() {
            match token {
                Token::Mark(b';') => {
                    self.at += 1;
                    return;
                }
                Token::Mark(b'{') => match self.vector_length() {
                    Some(length) => self.at += length,
                    None => return,
                },
                Token::Mark(b'}') => return,
                _ => self.at += 1,
            }
        }
    }

    /// If a list such as `{%f1,%f2}` starts here, returns its number of tokens.
    fn vector_length(&self) -> Option<usize> {
        let rest = &self.tokens[self.at..self.tokens.len().min(self.at + 20)];
        let end = rest.iter().position(|lexeme| matches!(lexeme.token, Token::Mark(b'}' | b';')))?;
        (rest[end].token == Token::Mark(b'}')).then_some(end + 1)
    }

    /// Skips a `{…}` and its contents.
    pub(crate) fn skip_braces(&mut self) -> Parsed<()> {
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                None => return self.unexpected("`}`"),
                Some(Token::Mark(b'{')) => depth += 1,
                Some(Token::Mark(b'}')) => depth -= 1,
                Some(_) => {}
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Parses `+4`, `+-4`, `-4`, or nothing.
    pub(crate) fn offset(&mut self) -> Parsed<i64> {
        if self.accept(b'+') || self.peek() == Some(Token::Mark(b'-')) { self.integer() } else { Ok(0) }
    }
}
