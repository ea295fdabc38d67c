//! Reads PTX and turns it into kernels that the machine executes.
//!
//! Each step has its own type: the `parser` turns the text into syntax, `resolve` determines the meaning of
//! opcodes, types, and modifiers, and `lower` turns the result into operations on registers.
//!
//! Any version of the ISA is accepted; each unsupported instruction causes an error that contains its line number.

mod diagnostic;
pub mod instruction;
mod kernel;
mod lexer;
mod lower;
mod number;
mod opcode;
mod parser;
mod resolve;
mod resolved;
mod syntax;
mod types;
pub mod window;

pub use diagnostic::{Diagnostic, LoadError};
pub use kernel::Frame;
pub use kernel::{
    AddressOf, ClusterRules, CudaLine, Kernel, Module, Parameter, Registers, ThreadConstant, Uniform,
    Variable,
};

use lexer::{Lexeme, Token};

/// The maximum length of a string, in bytes. A text's tokens take up to sixteen times as much memory.
const MAX_BYTES: usize = 32 << 20;

/// Reads a PTX text of at most 32 MiB.
///
/// # Errors
/// Returns everything in the text that is not supported, with line numbers.
pub fn load(source: &str) -> Result<Module, LoadError> {
    let refuse = |diagnostic| LoadError::new(vec![diagnostic]);
    if source.len() > MAX_BYTES {
        let text =
            format!("the text has {} MiB, but at most {} are allowed", source.len() >> 20, MAX_BYTES >> 20);
        return Err(refuse(Diagnostic::new(0, text)));
    }
    let tokens = match lexer::tokens(source) {
        Ok(tokens) if starts_as_ptx(&tokens) => tokens,
        Err(diagnostic) if source.contains(".version") => return Err(refuse(diagnostic)),
        _ => {
            let mut error = refuse(Diagnostic::new(0, "this is not PTX: it doesn't begin with `.version`"));
            error.is_ptx = false;
            return Err(error);
        }
    };
    let (file, mut diagnostics) = parser::parse(&tokens);
    let file = resolve::resolve(file);
    let module = lower::lower(&file, &mut diagnostics);
    if diagnostics.is_empty() { Ok(module) } else { Err(LoadError::new(diagnostics)) }
}

fn starts_as_ptx(tokens: &[Lexeme<'_>]) -> bool {
    tokens.first().is_some_and(|first| first.token == Token::Dot("version"))
}
