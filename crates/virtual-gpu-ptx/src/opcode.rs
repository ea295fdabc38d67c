//! The PTX opcodes that are supported.

macro_rules! opcodes {
    ($($variant:ident $name:literal,)*) => {
        /// An instruction's name up to its first dot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode {
            $($variant,)*
        }

        impl Opcode {
            /// Returns the opcode with this name.
            pub(crate) fn named(name: &str) -> Option<Self> {
                Some(match name {
                    $($name => Self::$variant,)*
                    _ => return None,
                })
            }
        }
    };
}

opcodes! {
    // Integer arithmetic, including extended-precision and mixed; `add` to `neg` are also floating-point.
    Add "add", Sub "sub", Mul "mul", Mad "mad", Mul24 "mul24", Mad24 "mad24", Sad "sad", Div "div", Rem "rem",
    Abs "abs", Neg "neg", Min "min", Max "max",
    Popc "popc", Clz "clz", Bfind "bfind", Fns "fns", Brev "brev", Bfe "bfe", Bfi "bfi", Szext "szext",
    Bmsk "bmsk", Dp4a "dp4a", Dp2a "dp2a",
    Addc "addc", Subc "subc", Madc "madc",
    // Floating point.
    Testp "testp", Copysign "copysign", Fma "fma", Rcp "rcp", Sqrt "sqrt", Rsqrt "rsqrt", Sin "sin", Cos "cos",
    Lg2 "lg2", Ex2 "ex2", Tanh "tanh",
    // Comparison and selection.
    Set "set", Setp "setp", Selp "selp", Slct "slct",
    // Logic and shift.
    And "and", Or "or", Xor "xor", Not "not", Cnot "cnot", Lop3 "lop3", Shf "shf", Shl "shl", Shr "shr",
    // Data movement and conversion.
    Mov "mov", Shfl "shfl", Prmt "prmt", Ld "ld", Ldu "ldu", St "st", Prefetch "prefetch", Prefetchu "prefetchu",
    Createpolicy "createpolicy", Applypriority "applypriority", Isspacep "isspacep", Mapa "mapa",
    Getctarank "getctarank", Cvta "cvta", Cvt "cvt", Cp "cp",
    // Textures and surfaces.
    Tex "tex", Tld4 "tld4", Txq "txq", Suld "suld", Sust "sust", Suq "suq",
    // Control flow.
    Bra "bra", Brx "brx", Call "call", Ret "ret", Exit "exit",
    // Parallel synchronization and communication.
    Bar "bar", Barrier "barrier", Membar "membar", Fence "fence", Atom "atom", Red "red", Vote "vote",
    Match "match", Activemask "activemask", Redux "redux", Elect "elect", Mbarrier "mbarrier",
    // Matrices.
    Ldmatrix "ldmatrix", Stmatrix "stmatrix", Movmatrix "movmatrix", Mma "mma", Wmma "wmma",
    // SIMD video.
    Vadd2 "vadd2", Vsub2 "vsub2", Vavrg2 "vavrg2", Vabsdiff2 "vabsdiff2", Vmin2 "vmin2", Vmax2 "vmax2",
    Vadd4 "vadd4", Vsub4 "vsub4", Vavrg4 "vavrg4", Vabsdiff4 "vabsdiff4", Vmin4 "vmin4", Vmax4 "vmax4",
    // The rest.
    Nanosleep "nanosleep", Trap "trap", Griddepcontrol "griddepcontrol", Setmaxnreg "setmaxnreg",
}
