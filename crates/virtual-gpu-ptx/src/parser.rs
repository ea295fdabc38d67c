//! From tokens to the file's shape. Errors are collected; after each one, reading goes on at the next statement.

use super::diagnostic::Diagnostic;
use super::lexer::{Lexeme, Token};
use super::number::{self, Number};
use super::syntax::{File, Function, Initial, Variable, VariableSpace};

/// Reads a file's tokens.
pub(super) fn parse<'a>(tokens: &'a [Lexeme<'a>]) -> (File<'a>, Vec<Diagnostic>) {
    let mut parser = Parser { tokens, at: 0, diagnostics: Vec::new() };
    let mut file = File::default();
    while parser.peek().is_some() {
        let start = parser.at;
        if let Err(diagnostic) = parser.item(&mut file) {
            parser.diagnostics.push(diagnostic);
            parser.recover();
        }
        if parser.at == start {
            parser.at += 1;
        }
    }
    (file, parser.diagnostics)
}

pub(super) type Parsed<T> = Result<T, Diagnostic>;

pub(super) struct Parser<'a> {
    tokens: &'a [Lexeme<'a>],
    pub(super) at: usize,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// The linking words before a declaration.
#[derive(Default)]
pub(super) struct Linkage {
    is_extern: bool,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|lexeme| lexeme.token)
    }

    pub(super) fn peek_after(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at + 1).map(|lexeme| lexeme.token)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |lexeme| lexeme.line)
    }

    pub(super) fn error<T>(&self, text: impl Into<String>) -> Parsed<T> {
        Err(Diagnostic::new(self.line(), text))
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match self.peek() {
            None => "the text ends".to_owned(),
            Some(Token::Word(word)) => format!("`{word}`"),
            Some(Token::Dot(word)) => format!("`.{word}`"),
            Some(Token::Number(number)) => format!("`{number}`"),
            Some(Token::Text(text)) => format!("{text:?}"),
            Some(Token::Mark(mark)) => format!("`{}`", char::from(mark)),
        };
        self.error(format!("expected {wanted}, found {found}"))
    }

    pub(super) fn accept(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, mark: u8) -> Parsed<()> {
        if self.accept(mark) { Ok(()) } else { self.unexpected(&format!("`{}`", char::from(mark))) }
    }

    pub(super) fn accept_dot(&mut self, name: &str) -> bool {
        let found = self.peek() == Some(Token::Dot(name));
        self.at += usize::from(found);
        found
    }

    pub(super) fn word(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a name"),
        }
    }

    fn dot(&mut self) -> Parsed<&'a str> {
        match self.peek() {
            Some(Token::Dot(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a directive"),
        }
    }

    pub(super) fn number(&mut self) -> Parsed<Number> {
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

    pub(super) fn integer(&mut self) -> Parsed<i64> {
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.error("expected an integer"),
        }
    }

    pub(super) fn small(&mut self) -> Parsed<u32> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.error(format!("{value} is out of range")))
    }

    /// Skips to behind the next `;`, or to a brace that opens or closes a block.
    pub(super) fn recover(&mut self) {
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

    /// Tokens of the `{%f1,%f2}` that starts here, if it is one.
    fn vector_length(&self) -> Option<usize> {
        let rest = &self.tokens[self.at..self.tokens.len().min(self.at + 20)];
        let end = rest.iter().position(|lexeme| matches!(lexeme.token, Token::Mark(b'}' | b';')))?;
        (rest[end].token == Token::Mark(b'}')).then_some(end + 1)
    }

    /// Skips a `{…}` with all that is in it.
    fn skip_braces(&mut self) -> Parsed<()> {
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

    fn item(&mut self, file: &mut File<'a>) -> Parsed<()> {
        let mut linkage = Linkage::default();
        loop {
            let line = self.line();
            match self.dot()? {
                "version" | "address_size" => {
                    self.number()?;
                }
                "target" => {
                    file.target = architecture(self.word()?);
                    while self.accept(b',') {
                        self.word()?;
                    }
                }
                "visible" | "weak" | "common" => continue,
                "extern" => {
                    linkage.is_extern = true;
                    continue;
                }
                "file" => self.file_directive(file)?,
                "section" => {
                    self.dot()?;
                    self.skip_braces()?;
                }
                "pragma" => self.recover(),
                "entry" => file.functions.push(self.function(line, true)?),
                "func" => file.functions.push(self.function(line, false)?),
                name => match variable_space(name) {
                    Some(space) => self.variables(space, &linkage, &mut file.variables)?,
                    None => return Err(Diagnostic::new(line, format!("unsupported directive `.{name}`"))),
                },
            }
            return Ok(());
        }
    }

    fn file_directive(&mut self, file: &mut File<'a>) -> Parsed<()> {
        let index = self.small()?;
        let Some(Token::Text(name)) = self.peek() else { return self.unexpected("a file's name") };
        self.at += 1;
        file.sources.push((index, name));
        while self.accept(b',') {
            self.number()?;
        }
        Ok(())
    }

    /// `.space [.align n] .type name[size] [= initial], …;`
    pub(super) fn variables(
        &mut self,
        space: VariableSpace,
        linkage: &Linkage,
        found: &mut Vec<Variable<'a>>,
    ) -> Parsed<()> {
        let (align, kind, width) = self.type_of_variable()?;
        loop {
            let mut variable = self.declarator(space, align, kind, width)?;
            variable.is_extern = linkage.is_extern;
            if self.accept(b'=') {
                variable.initial = self.initial(&variable)?;
            }
            found.push(variable);
            if !self.accept(b',') {
                return self.expect(b';');
            }
        }
    }

    /// The declared alignment (0: none), the element type and the element's bytes.
    fn type_of_variable(&mut self) -> Parsed<(u32, &'a str, u64)> {
        let (mut align, mut lanes) = (0, 1);
        loop {
            match self.dot()? {
                "align" => {
                    align = self.small()?;
                    if !align.is_power_of_two() || align > 4096 {
                        return self.error(format!("{align} is no alignment"));
                    }
                }
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                "ptr" => {
                    // `.ptr .global .align 4`: says what the parameter points to.
                    if let Some(Token::Dot("global" | "const" | "local" | "shared")) = self.peek() {
                        self.at += 1;
                    }
                    if self.accept_dot("align") {
                        self.small()?;
                    }
                    return Ok((align, "u64", 8));
                }
                kind => match type_bytes(kind) {
                    Some(_) if self.peek() == Some(Token::Dot("ptr")) => {}
                    Some(bytes) => return Ok((align, kind, bytes * lanes)),
                    None => return self.error(format!("unsupported type `.{kind}`")),
                },
            }
        }
    }

    fn declarator(
        &mut self,
        space: VariableSpace,
        align: u32,
        kind: &'a str,
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

    /// `= 1` or `= {1, 2}` or `= generic(name)+4`: the variable's first bytes.
    fn initial(&mut self, variable: &Variable<'a>) -> Parsed<Initial<'a>> {
        let Some(width) = type_bytes(variable.kind) else { return self.error("a type without a size") };
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
                return self.error(format!("more initial values than `{}` holds", variable.name));
            }
            if depth == 0 {
                return Ok(Initial { bytes, addresses });
            }
            self.expect(b',')?;
        }
    }

    /// `name+4` or `generic(name)+4`; generic and global addresses are the same here.
    fn address_of_name(&mut self) -> Parsed<(&'a str, i64)> {
        let mut name = self.word()?;
        if name == "generic" && self.accept(b'(') {
            name = self.word()?;
            self.expect(b')')?;
        }
        Ok((name, self.offset()?))
    }

    fn function(&mut self, line: u32, is_entry: bool) -> Parsed<Function<'a>> {
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

    fn parameters(&mut self) -> Parsed<Vec<Variable<'a>>> {
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

pub(super) fn variable_space(name: &str) -> Option<VariableSpace> {
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

/// Bytes of a type; a predicate counts as one.
pub(super) fn type_bytes(kind: &str) -> Option<u64> {
    Some(match kind {
        "pred" | "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        _ => return None,
    })
}

/// 70 of `sm_70`, 90 of `sm_90a`; 0 where the word is no architecture.
fn architecture(word: &str) -> u32 {
    let number = word.strip_prefix("sm_").unwrap_or_default();
    let digits = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    digits.parse().unwrap_or(0)
}
