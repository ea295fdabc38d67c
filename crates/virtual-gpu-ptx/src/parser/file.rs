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

/// Returns 70 for `sm_70` and 90 for `sm_90a`; 0 if the word is not an architecture.
fn architecture(word: &str) -> u32 {
    let number = word.strip_prefix("sm_").unwrap_or_default();
    let digits = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
    digits.parse().unwrap_or(0)
}
