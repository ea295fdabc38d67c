//! Declarations of variables, registers, and parameters.

use super::cursor::{Parsed, Parser};
use crate::lexer::Token;
use crate::syntax::{Initial, Variable, VariableSpace};
use crate::types::Type;

/// The linking directive before a declaration.
#[derive(Default)]
pub(crate) struct Linkage {
    pub(crate) is_stated: bool,
    pub(crate) is_extern: bool,
}

impl<'a> Parser<'a> {
    /// Parses `.space [.align n] .type name[size] [= initial], …;`.
    pub(crate) fn variables(
        &mut self,
        space: VariableSpace,
        linkage: &Linkage,
        found: &mut Vec<Variable<'a>>,
    ) -> Parsed<()> {
        let (align, kind, width) = self.type_of_variable()?;
        loop {
            let mut variable = self.declarator(space, align, kind, width)?;
            variable.is_extern = linkage.is_extern;
            let is_array = variable.size != width || variable.is_unsized;
            if space == VariableSpace::Register && (is_array || self.peek() == Some(Token::Mark(b'='))) {
                return self.error(format!(
                    "the register `{}` can't be an array or have an initial value",
                    variable.name
                ));
            }
            if self.accept(b'=') {
                variable.initial = self.initial(&variable)?;
            }
            found.push(variable);
            if !self.accept(b',') {
                return self.expect(b';');
            }
        }
    }

    /// Parses and returns the declared alignment (0 for none), the element type, and the element's size in bytes.
    fn type_of_variable(&mut self) -> Parsed<(u32, Type, u64)> {
        let (mut align, mut elements) = (0, 1);
        loop {
            match self.dot()? {
                "align" => {
                    align = self.small()?;
                    if !align.is_power_of_two() || align > 4096 {
                        return self.error(format!("{align} is not a valid alignment"));
                    }
                }
                "v2" => elements = 2,
                "v4" => elements = 4,
                "ptr" => {
                    // `.ptr .global .align 4`: what the parameter points to.
                    if let Some(Token::Dot("global" | "const" | "local" | "shared")) = self.peek() {
                        self.at += 1;
                    }
                    if self.accept_dot("align") {
                        self.small()?;
                    }
                    return Ok((align, Type::U64, 8));
                }
                name => match Type::named(name) {
                    Some(_) if self.peek() == Some(Token::Dot("ptr")) => {}
                    Some(kind) => return Ok((align, kind, kind.bytes() * elements)),
                    None => return self.error(format!("unsupported type `.{name}`")),
                },
            }
        }
    }

    fn declarator(
        &mut self,
        space: VariableSpace,
        align: u32,
        kind: Type,
        width: u64,
    ) -> Parsed<Variable<'a>> {
        let line = self.line();
        let name = self.word()?;
        let mut size = width;
        let (mut is_unsized, mut count) = (false, None);
        if space == VariableSpace::Register && self.accept(b'<') {
            count = Some(self.small()?);
            self.expect(b'>')?;
        }
        while self.accept(b'[') {
            if self.accept(b']') {
                is_unsized = true;
                continue;
            }
            let elements = u64::from(self.small()?);
            self.expect(b']')?;
            size = match size.checked_mul(elements) {
                Some(size) if size < 1 << 40 => size,
                _ => return self.error(format!("`{name}` is too large")),
            };
        }
        let align = if align == 0 { width.clamp(1, 16) as u32 } else { align };
        let size = if is_unsized { 0 } else { size };
        let is_extern = false;
        Ok(Variable {
            line,
            name,
            space,
            kind,
            align,
            size,
            is_unsized,
            is_extern,
            initial: Initial::default(),
            count,
        })
    }

    /// Parses `= 1`, `= {1, 2}`, or `= generic(name)+4`: the variable's initial bytes.
    fn initial(&mut self, variable: &Variable<'a>) -> Parsed<Initial<'a>> {
        let width = variable.kind.bytes();
        let Initial { mut bytes, mut addresses } = Initial::default();
        let mut depth = 0;
        loop {
            while self.accept(b'{') {
                depth += 1;
            }
            if let Some(Token::Word(_)) = self.peek() {
                let (name, offset) = self.address_of_name()?;
                if width != 8 {
                    return self.error(format!("unsupported: the address of `{name}` in less than 64 bits"));
                }
                addresses.push((bytes.len() as u64, name, offset));
                bytes.extend_from_slice(&[0; 8]);
            } else if !(depth > 0 && self.peek() == Some(Token::Mark(b'}'))) {
                let value = self.number()?.bits(variable.kind);
                bytes.extend_from_slice(&value.to_le_bytes()[..width as usize]);
            }
            while depth > 0 && self.accept(b'}') {
                depth -= 1;
            }
            if bytes.len() as u64 > variable.size {
                return self.error(format!("more initial values than `{}` has room for", variable.name));
            }
            if depth == 0 {
                return Ok(Initial { bytes, addresses });
            }
            self.expect(b',')?;
        }
    }

    /// Parses `name+4` or `generic(name)+4`; generic and global addresses are the same here.
    fn address_of_name(&mut self) -> Parsed<(&'a str, i64)> {
        let mut name = self.word()?;
        if name == "generic" && self.accept(b'(') {
            name = self.word()?;
            self.expect(b')')?;
        }
        Ok((name, self.offset()?))
    }

    /// Parses `(.param .type name, …)`.
    pub(crate) fn parameters(&mut self) -> Parsed<Vec<Variable<'a>>> {
        self.expect(b'(')?;
        let mut found = Vec::new();
        if self.accept(b')') {
            return Ok(found);
        }
        loop {
            let space = match self.dot()? {
                "param" => VariableSpace::Param,
                "reg" => VariableSpace::Register,
                name => return self.error(format!("unsupported parameter space `.{name}`")),
            };
            let (align, kind, width) = self.type_of_variable()?;
            found.push(self.declarator(space, align, kind, width)?);
            if !self.accept(b',') {
                self.expect(b')')?;
                return Ok(found);
            }
        }
    }
}

pub(crate) fn variable_space(name: &str) -> Option<VariableSpace> {
    Some(match name {
        "global" => VariableSpace::Global,
        "const" => VariableSpace::Const,
        "shared" => VariableSpace::Shared,
        "local" => VariableSpace::Local,
        "param" => VariableSpace::Param,
        "reg" => VariableSpace::Register,
        _ => return None,
    })
}
