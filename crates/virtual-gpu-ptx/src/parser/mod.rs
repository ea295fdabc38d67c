//! Parses tokens into the syntax of a file. Errors are collected; after each error, parsing continues with the next
//! statement.

mod cursor;
mod declaration;
mod file;
mod function;
mod operand;
mod statement;

pub(crate) use file::{ParsedFile, parse};
