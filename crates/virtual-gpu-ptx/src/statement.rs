//! From tokens to statements: what stands between the braces of a function.

use super::diagnostic::Diagnostic;
use super::lexer::Token;
use super::number::Number;
use super::parser::{Linkage, Parsed, Parser, variable_space};
use super::syntax::{Operand, Raw, Statement};

impl<'a> Parser<'a> {
    /// The statements between the braces of a function.
    pub(super) fn body(&mut self) -> Vec<Statement<'a>> {
        let mut statements = Vec::new();
        let mut depth = 0_usize;
        loop {
            match self.peek() {
                None => {
                    self.diagnostics.push(Diagnostic::new(self.line(), "the text ends inside a function"));
                    return statements;
                }
                Some(Token::Mark(b'{')) => {
                    self.at += 1;
                    depth += 1;
                    if depth > 1 {
                        statements.push(Statement::Open);
                    }
                }
                Some(Token::Mark(b'}')) => {
                    self.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return statements;
                    }
                    statements.push(Statement::Close);
                }
                Some(_) => {
                    if let Err(diagnostic) = self.statement(&mut statements) {
                        self.diagnostics.push(diagnostic);
                        self.recover();
                    }
                }
            }
        }
    }

    fn statement(&mut self, statements: &mut Vec<Statement<'a>>) -> Parsed<()> {
        match (self.peek(), self.peek_after()) {
            (Some(Token::Mark(b';')), _) => {
                self.at += 1;
                Ok(())
            }
            (Some(Token::Word(name)), Some(Token::Mark(b':'))) => {
                self.at += 2;
                statements.push(match self.peek() {
                    Some(Token::Dot("branchtargets")) => {
                        self.at += 1;
                        Statement::BranchTargets { name, labels: self.names()? }
                    }
                    // Who can be called is decided by who has an address, and fits.
                    Some(Token::Dot("callprototype" | "calltargets")) => {
                        self.recover();
                        return Ok(());
                    }
                    _ => Statement::Label(name),
                });
                Ok(())
            }
            (Some(Token::Dot(name)), _) => self.directive(name, statements),
            _ => {
                let raw = self.instruction()?;
                statements.push(Statement::Instruction(raw));
                Ok(())
            }
        }
    }

    /// `a, b, c;`
    fn names(&mut self) -> Parsed<Vec<&'a str>> {
        let mut names = vec![self.word()?];
        while self.accept(b',') {
            names.push(self.word()?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn directive(&mut self, name: &'a str, statements: &mut Vec<Statement<'a>>) -> Parsed<()> {
        let line = self.line();
        self.at += 1;
        match name {
            "loc" => {
                let (file, line) = (self.small()?, self.small()?);
                statements.push(Statement::Location { file, line });
                self.small()?;
                // `, function_name label, inlined_at file line column`: where the inlined code was called.
                while self.accept(b',') {
                    match self.word()? {
                        "function_name" => {
                            self.word()?;
                            self.offset()?;
                        }
                        "inlined_at" => {
                            for _ in 0..3 {
                                self.small()?;
                            }
                        }
                        other => return self.error(format!("unsupported in `.loc`: `{other}`")),
                    }
                }
                Ok(())
            }
            "pragma" => {
                self.recover();
                Ok(())
            }
            _ => match variable_space(name) {
                Some(space) => {
                    let mut found = Vec::new();
                    self.variables(space, &Linkage::default(), &mut found)?;
                    statements.extend(found.into_iter().map(Statement::Variable));
                    Ok(())
                }
                None => Err(Diagnostic::new(line, format!("unsupported directive `.{name}`"))),
            },
        }
    }

    fn instruction(&mut self) -> Parsed<Raw<'a>> {
        let line = self.line();
        let mut guard = None;
        if self.accept(b'@') {
            let negated = self.accept(b'!');
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        let mut modifiers = Vec::new();
        while let Some(Token::Dot(modifier)) = self.peek() {
            self.at += 1;
            modifiers.push(modifier);
        }
        let mut operands = Vec::new();
        if !self.accept(b';') {
            loop {
                operands.push(self.operand()?);
                if !self.accept(b',') {
                    self.expect(b';')?;
                    break;
                }
            }
        }
        Ok(Raw { line, guard, opcode, modifiers, operands })
    }

    fn operand(&mut self) -> Parsed<Operand<'a>> {
        match self.peek() {
            Some(Token::Mark(b'[')) => self.address(),
            Some(Token::Mark(b'{')) => {
                self.at += 1;
                let mut elements = vec![self.simple_operand()?];
                while self.accept(b',') {
                    elements.push(self.simple_operand()?);
                }
                self.expect(b'}')?;
                Ok(Operand::Vector(elements))
            }
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
                Ok(Operand::Sink)
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

    /// `+4`, `+-4`, `-4` or nothing.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
        if self.accept(b'+') || self.peek() == Some(Token::Mark(b'-')) { self.integer() } else { Ok(0) }
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
        if self.peek() == Some(Token::Mark(b',')) {
            // A texture's coordinates, or a tensor's.
            while !matches!(self.peek(), None | Some(Token::Mark(b']' | b';'))) {
                self.at += 1;
            }
            self.expect(b']')?;
            return Ok(Operand::Compound);
        }
        self.expect(b']')?;
        Ok(Operand::Address { name, offset })
    }
}
