//! A PTX text's syntax, in which names and opcodes are not yet resolved.
//!
//! `I` is the type of an instruction: as parsed, or resolved.

use super::kernel::ClusterRules;
use super::types::Type;

/// A file.
#[derive(Debug)]
pub(crate) struct File<'a, I> {
    /// `.target`: 70 for `sm_70`.
    pub(crate) target: u32,
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) functions: Vec<Function<'a, I>>,
    /// `.file` number and path.
    pub(crate) sources: Vec<(u32, &'a str)>,
}

/// `.entry` or `.func`.
#[derive(Debug)]
pub(crate) struct Function<'a, I> {
    pub(crate) line: u32,
    pub(crate) name: &'a str,
    pub(crate) is_entry: bool,
    pub(crate) returns: Vec<Variable<'a>>,
    pub(crate) parameters: Vec<Variable<'a>>,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) required_threads: Option<[u32; 3]>,
    pub(crate) cluster: ClusterRules,
    /// `None` if the function is only declared.
    pub(crate) body: Option<Vec<Statement<'a, I>>>,
}

/// State spaces of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
    Register,
}

/// A declared variable, parameter, or register.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) line: u32,
    pub(crate) name: &'a str,
    pub(crate) space: VariableSpace,
    /// The element's type.
    pub(crate) kind: Type,
    pub(crate) align: u32,
    pub(crate) size: u64,
    /// `name[]`: the launch sets its size.
    pub(crate) is_unsized: bool,
    pub(crate) is_extern: bool,
    pub(crate) initial: Initial<'a>,
    /// For registers only: `%r<30>` declares 30 of them.
    pub(crate) count: Option<u32>,
}

/// The initial value of a module's variable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Initial<'a> {
    /// The initial bytes.
    pub(crate) bytes: Vec<u8>,
    /// The addresses among these bytes. For each: the offset of its first byte, the name of the variable or function,
    /// and an offset to add.
    pub(crate) addresses: Vec<(u64, &'a str, i64)>,
}

/// A statement in a function's body.
#[derive(Debug)]
pub(crate) enum Statement<'a, I> {
    Open,
    Close,
    Label(&'a str),
    Variable(Variable<'a>),
    Location {
        file: u32,
        line: u32,
    },
    /// `name: .branchtargets label, …;`
    BranchTargets {
        name: &'a str,
        labels: Vec<&'a str>,
    },
    Instruction(I),
}

/// An instruction as written.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    pub(crate) line: u32,
    /// The predicate's name and whether it is negated.
    pub(crate) guard: Option<(&'a str, bool)>,
    pub(crate) opcode: &'a str,
    pub(crate) modifiers: Vec<&'a str>,
    pub(crate) operands: Vec<Operand<'a>>,
}

impl Written<'_> {
    /// Returns the opcode with its modifiers, as written.
    pub(crate) fn name(&self) -> String {
        let mut name = self.opcode.to_owned();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }

    /// Returns the error for an unsupported instruction.
    pub(crate) fn unsupported(&self) -> String {
        format!("unsupported instruction `{}`", self.name())
    }
}

/// An operand whose names are not yet resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand<'a> {
    /// `%r1`, `%tid.x`, `variable+4`, a label.
    Name {
        name: &'a str,
        component: Option<&'a str>,
        offset: i64,
    },
    /// `!%p1`
    Not(&'a str),
    /// `%p1|%p2`
    Pair(&'a str, &'a str),
    Integer(i64),
    Single(u32),
    Double(f64),
    /// `{%f1,%f2}`
    Vector(Vec<Operand<'a>>),
    /// `[%rd1+4]`; an absolute address has no name.
    Address {
        name: Option<&'a str>,
        offset: i64,
    },
    /// `[%rd1, {%r1,%r2}]`: a tensor map or texture, and coordinates.
    Compound {
        name: &'a str,
        offset: i64,
        coordinates: Vec<Operand<'a>>,
    },
    /// `(param0, param1)`
    List(Vec<&'a str>),
    /// `_`
    Sink,
}

impl<'a, I> Function<'a, I> {
    /// Returns the same function with its instructions replaced.
    pub(crate) fn map<J>(self, f: &mut impl FnMut(I) -> J) -> Function<'a, J> {
        let Self { line, name, is_entry, returns, parameters, .. } = self;
        let Self { max_threads, required_threads, cluster, body, .. } = self;
        let body = body.map(|body| body.into_iter().map(|statement| statement.map(f)).collect());
        Function { line, name, is_entry, returns, parameters, max_threads, required_threads, cluster, body }
    }
}

impl<'a, I> Statement<'a, I> {
    fn map<J>(self, f: &mut impl FnMut(I) -> J) -> Statement<'a, J> {
        match self {
            Self::Open => Statement::Open,
            Self::Close => Statement::Close,
            Self::Label(name) => Statement::Label(name),
            Self::Variable(variable) => Statement::Variable(variable),
            Self::Location { file, line } => Statement::Location { file, line },
            Self::BranchTargets { name, labels } => Statement::BranchTargets { name, labels },
            Self::Instruction(instruction) => Statement::Instruction(f(instruction)),
        }
    }
}
