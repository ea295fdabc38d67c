//! Statements: what is between a function's braces.

use super::cursor::{Parsed, Parser};
use super::declaration::{Linkage, variable_space};
use crate::diagnostic::Diagnostic;
use crate::lexer::Token;
use crate::syntax::{Statement, Written};

impl<'a> Parser<'a> {
    /// Parses the statements between a function's braces.
    pub(crate) fn body(&mut self) -> Vec<Statement<'a, Written<'a>>> {
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

    fn statement(&mut self, statements: &mut Vec<Statement<'a, Written<'a>>>) -> Parsed<()> {
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
                    // An indirect call can reach any function whose address is taken and whose parameters match.
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
                let instruction = self.instruction()?;
                statements.push(Statement::Instruction(instruction));
                Ok(())
            }
        }
    }

    /// Parses `a, b, c;`.
    fn names(&mut self) -> Parsed<Vec<&'a str>> {
        let mut names = vec![self.word()?];
        while self.accept(b',') {
            names.push(self.word()?);
        }
        self.expect(b';')?;
        Ok(names)
    }

    fn directive(&mut self, name: &'a str, statements: &mut Vec<Statement<'a, Written<'a>>>) -> Parsed<()> {
        let line = self.line();
        self.at += 1;
        match name {
            "loc" => {
                let location = self.location()?;
                statements.push(location);
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

    /// Parses `.loc file line column`, and where the code was inlined: `, function_name label, inlined_at file line
    /// column`.
    fn location(&mut self) -> Parsed<Statement<'a, Written<'a>>> {
        let (file, line) = (self.small()?, self.small()?);
        self.small()?;
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
        Ok(Statement::Location { file, line })
    }

    /// Parses `@p opcode.modifiers operands;`.
    fn instruction(&mut self) -> Parsed<Written<'a>> {
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
        Ok(Written { line, guard, opcode, modifiers, operands })
    }
}
