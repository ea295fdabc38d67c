//! A file's directives.

use super::cursor::{Parsed, Parser};
use super::declaration::{Linkage, variable_space};
use crate::diagnostic::Diagnostic;
use crate::lexer::{Lexeme, Token};
use crate::syntax::{File, Written};

/// A file whose instructions are still as written.
pub(crate) type ParsedFile<'a> = File<'a, Written<'a>>;

/// Parses a file's tokens.
pub(crate) fn parse<'a>(tokens: &'a [Lexeme<'a>]) -> (ParsedFile<'a>, Vec<Diagnostic>) {
    let mut parser = Parser::new(tokens);
    let mut file = File { target: 0, variables: Vec::new(), functions: Vec::new(), sources: Vec::new() };
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

impl<'a> Parser<'a> {
    fn item(&mut self, file: &mut ParsedFile<'a>) -> Parsed<()> {
        let mut linkage = Linkage::default();
        loop {
            let line = self.line();
            let name = self.dot()?;
            if linkage.is_stated && name != "entry" && name != "func" && variable_space(name).is_none() {
                return Err(Diagnostic::new(
                    line,
                    format!("`.{name}` can't have a linking directive before it"),
                ));
            }
            match name {
                "version" => {
                    self.number()?;
                }
                "address_size" => match self.small()? {
                    32 | 64 => {}
                    bits => return self.error(format!("{bits} is not an address size")),
                },
                "target" => self.target(file)?,
                "visible" | "weak" | "common" | "extern" => {
                    linkage = Linkage { is_stated: true, is_extern: name == "extern" };
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
                // With the ABI that the driver uses, registers belong to functions.
                "reg" => return self.error("a register can't be declared outside a function"),
                name => match variable_space(name) {
                    Some(space) => self.variables(space, &linkage, &mut file.variables)?,
                    None => return Err(Diagnostic::new(line, format!("unsupported directive `.{name}`"))),
                },
            }
            return Ok(());
        }
    }

    /// Parses `.target sm_90, debug`: an architecture, and options.
    fn target(&mut self, file: &mut ParsedFile<'a>) -> Parsed<()> {
        let word = self.word()?;
        let Some(target) = architecture(word) else {
            return self.error(format!("`{word}` is not an architecture"));
        };
        file.target = target;
        while self.accept(b',') {
            let option = self.word()?;
            if !matches!(option, "texmode_unified" | "texmode_independent" | "debug" | "map_f64_to_f32") {
                return self.error(format!("`{option}` is not an option of `.target`"));
            }
        }
        Ok(())
    }

    fn file_directive(&mut self, file: &mut ParsedFile<'a>) -> Parsed<()> {
        let index = self.small()?;
        let Some(Token::Text(name)) = self.peek() else { return self.unexpected("a file's name") };
        self.at += 1;
        file.sources.push((index, name));
        while self.accept(b',') {
            self.number()?;
        }
        Ok(())
    }
}

/// Returns 70 for `sm_70` and `compute_70`, and 90 for `sm_90a`, or `None` if the word is not an architecture.
fn architecture(word: &str) -> Option<u32> {
    let number = word.strip_prefix("sm_").or_else(|| word.strip_prefix("compute_"))?;
    let digits = number.trim_end_matches(['a', 'f']);
    digits.parse().ok()
}
