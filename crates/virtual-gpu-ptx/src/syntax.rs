//! The shape of a PTX text before names and opcodes mean anything.

/// A whole file.
#[derive(Debug, Default)]
pub(super) struct File<'a> {
    /// `.target`: 70 for `sm_70`.
    pub(super) target: u32,
    pub(super) variables: Vec<Variable<'a>>,
    pub(super) functions: Vec<Function<'a>>,
    /// `.file` number and path.
    pub(super) sources: Vec<(u32, &'a str)>,
}

/// `.entry` or `.func`.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) line: u32,
    pub(super) name: &'a str,
    pub(super) is_entry: bool,
    pub(super) returns: Vec<Variable<'a>>,
    pub(super) parameters: Vec<Variable<'a>>,
    pub(super) max_threads: Option<[u32; 3]>,
    pub(super) required_threads: Option<[u32; 3]>,
    /// `None` where it is only declared.
    pub(super) body: Option<Vec<Statement<'a>>>,
}

/// State spaces that variables live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VariableSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
    Register,
}

/// A declared variable, parameter or register.
#[derive(Clone, Debug)]
pub(super) struct Variable<'a> {
    pub(super) line: u32,
    pub(super) name: &'a str,
    pub(super) space: VariableSpace,
    /// The element's type, without the dot.
    pub(super) kind: &'a str,
    pub(super) align: u32,
    pub(super) size: u64,
    /// `name[]`: as long as the launch says.
    pub(super) is_unsized: bool,
    pub(super) is_extern: bool,
    pub(super) initial: Initial<'a>,
    /// Registers only: `%r<30>` declares 30 of them.
    pub(super) count: Option<u32>,
}

/// What a module's variable starts with.
#[derive(Clone, Debug, Default)]
pub(super) struct Initial<'a> {
    /// Its first bytes.
    pub(super) bytes: Vec<u8>,
    /// Where addresses go: the byte, the name of what has the address, and what is added to it.
    pub(super) addresses: Vec<(u64, &'a str, i64)>,
}

/// What stands in a function's body, in order.
#[derive(Debug)]
pub(super) enum Statement<'a> {
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
    Instruction(Raw<'a>),
}

/// An instruction whose names are not yet resolved.
#[derive(Clone, Debug)]
pub(super) struct Raw<'a> {
    pub(super) line: u32,
    /// The predicate's name, and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) modifiers: Vec<&'a str>,
    pub(super) operands: Vec<Operand<'a>>,
}

impl Raw<'_> {
    /// The opcode with its modifiers, as written.
    pub(super) fn name(&self) -> String {
        let mut name = self.opcode.to_owned();
        for modifier in &self.modifiers {
            name.push('.');
            name.push_str(modifier);
        }
        name
    }
}

/// An operand whose names are not yet resolved.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Operand<'a> {
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
    /// `[%rd1+4]`; no name: an absolute address.
    Address {
        name: Option<&'a str>,
        offset: i64,
    },
    /// `[%rd1, {%f1,%f2}]`, of no instruction that is supported.
    Compound,
    /// `(param0, param1)`
    List(Vec<&'a str>),
    /// `_`
    Sink,
}
