//! Operands: registers, numbers, addresses, and lists of operands.

use super::cursor::{Parsed, Parser};
use crate::lexer::Token;
use crate::number::Number;
use crate::syntax::Operand;

impl<'a> Parser<'a> {
    pub(crate) fn operand(&mut self) -> Parsed<Operand<'a>> {
        match self.peek() {
            Some(Token::Mark(b'[')) => self.address(),
            Some(Token::Mark(b'{')) => Ok(Operand::Vector(self.vector()?)),
            Some(Token::Mark(b'(')) => {
                self.at += 1;
                let mut names = Vec::new();
                while !self.accept(b')') {
                    names.push(self.word()?);
                    if self.peek() != Some(Token::Mark(b')')) {
                        self.expect(b',')?;
                    }
                }
                Ok(Operand::List(names))
            }
            _ => self.simple_operand(),
        }
    }

    fn vector(&mut self) -> Parsed<Vec<Operand<'a>>> {
        self.expect(b'{')?;
        let mut elements = vec![self.simple_operand()?];
        while self.accept(b',') {
            elements.push(self.simple_operand()?);
        }
        self.expect(b'}')?;
        Ok(elements)
    }

    fn simple_operand(&mut self) -> Parsed<Operand<'a>> {
        match self.peek() {
            Some(Token::Mark(b'!')) => {
                self.at += 1;
                Ok(Operand::Not(self.word()?))
            }
            Some(Token::Number(_) | Token::Mark(b'-')) => Ok(match self.number()? {
                Number::Integer(value) => Operand::Integer(value),
                Number::Single(bits) => Operand::Single(bits),
                Number::Double(value) => Operand::Double(value),
            }),
            Some(Token::Word("_")) => {
                self.at += 1;
                match self.accept(b'|') {
                    true => Ok(Operand::Pair("_", self.word()?)),
                    false => Ok(Operand::Sink),
                }
            }
            Some(Token::Word(name)) => {
                self.at += 1;
                if self.accept(b'|') {
                    return Ok(Operand::Pair(name, self.word()?));
                }
                let mut component = None;
                if let Some(Token::Dot(part)) = self.peek() {
                    self.at += 1;
                    component = Some(part);
                }
                let offset = self.offset()?;
                Ok(Operand::Name { name, component, offset })
            }
            _ => self.unexpected("an operand"),
        }
    }

    fn address(&mut self) -> Parsed<Operand<'a>> {
        self.expect(b'[')?;
        let (name, offset) = match self.peek() {
            Some(Token::Word(name)) => {
                self.at += 1;
                (Some(name), self.offset()?)
            }
            _ => (None, self.integer()?),
        };
        if let Some(name) = name
            && self.accept(b',')
        {
            let coordinates = match self.peek() {
                Some(Token::Mark(b'{')) => self.vector()?,
                _ => vec![self.simple_operand()?],
            };
            if self.peek() == Some(Token::Mark(b',')) {
                return self.error("a texture with a separate sampler is not supported");
            }
            self.expect(b']')?;
            return Ok(Operand::Compound { name, offset, coordinates });
        }
        self.expect(b']')?;
        Ok(Operand::Address { name, offset })
    }
}
