//! Functions: `.entry` and `.func`.

use super::cursor::{Parsed, Parser};
use crate::kernel::ClusterRules;
use crate::lexer::Token;
use crate::syntax::{Function, Written};

impl<'a> Parser<'a> {
    /// Parses what follows `.entry` or `.func`.
    pub(crate) fn function(&mut self, line: u32, is_entry: bool) -> Parsed<Function<'a, Written<'a>>> {
        let returns = match self.peek() {
            Some(Token::Mark(b'(')) => self.parameters()?,
            _ => Vec::new(),
        };
        let name = self.word()?;
        let parameters = match self.peek() {
            Some(Token::Mark(b'(')) => self.parameters()?,
            _ => Vec::new(),
        };
        let mut function = Function {
            line,
            name,
            is_entry,
            returns,
            parameters,
            max_threads: None,
            required_threads: None,
            cluster: ClusterRules::default(),
            body: None,
        };
        loop {
            match self.peek() {
                Some(Token::Mark(b'{')) => {
                    function.body = Some(self.body());
                    return Ok(function);
                }
                Some(Token::Mark(b';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                Some(Token::Dot("maxntid")) => {
                    self.at += 1;
                    function.max_threads = Some(self.extents()?);
                }
                Some(Token::Dot("reqntid")) => {
                    self.at += 1;
                    function.required_threads = Some(self.extents()?);
                }
                Some(Token::Dot("reqnctapercluster")) => {
                    self.at += 1;
                    function.cluster.required = Some(self.extents()?);
                }
                Some(Token::Dot("maxclusterrank")) => {
                    self.at += 1;
                    function.cluster.most_blocks = Some(self.small()?);
                }
                Some(Token::Dot("explicitcluster")) => {
                    self.at += 1;
                    function.cluster.is_explicit = true;
                }
                Some(Token::Dot("minnctapersm" | "maxnctapersm" | "maxnreg")) => {
                    self.at += 1;
                    self.number()?;
                }
                Some(Token::Dot("noreturn")) => self.at += 1,
                Some(Token::Dot("pragma")) => self.recover(),
                Some(Token::Dot(name)) => return self.error(format!("unsupported directive `.{name}`")),
                _ => return self.unexpected("a function's body"),
            }
        }
    }

    fn extents(&mut self) -> Parsed<[u32; 3]> {
        let mut extents = [1; 3];
        for (axis, extent) in extents.iter_mut().enumerate() {
            if axis > 0 && !self.accept(b',') {
                break;
            }
            *extent = self.small()?;
        }
        Ok(extents)
    }
}
