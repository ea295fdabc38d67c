//! Resolves the meaning of an instruction: its opcode, types, and modifiers.
//!
//! Each resolver cites the syntax from the manual, "Parallel Thread Execution ISA" version 9.2, by section title:
//! <https://docs.nvidia.com/cuda/parallel-thread-execution>. A citation omits the forms, modifiers, and types that are
//! not supported.

mod barrier;
mod bits;
mod bulk;
mod carry;
mod cluster;
mod compare;
mod control;
mod convert;
mod float;
mod hint;
mod integer;
mod logic;
mod matrix;
mod mbarrier;
mod memory;
mod modifiers;
mod parts;
mod tensor;
mod texture;
mod transfer;
mod vector;
mod warp;
mod wmma;

use crate::opcode::Opcode;
use crate::parser::ParsedFile;
use crate::resolved::{Form, Resolved, ResolvedFile};
use crate::syntax::{File, Written};
use crate::types::Type;
use modifiers::{Resolution, unsupported};

/// Resolves every instruction of a file.
pub(crate) fn resolve(file: ParsedFile<'_>) -> ResolvedFile<'_> {
    let File { target, variables, functions, sources } = file;
    let mut instruction = |mut written| {
        let form = form(&mut written);
        Resolved { written, form }
    };
    let functions = functions.into_iter().map(|function| function.map(&mut instruction)).collect();
    File { target, variables, functions, sources }
}

fn form<'a>(written: &mut Written<'a>) -> Resolution<Form<'a>> {
    use Opcode::*;
    let Some(opcode) = Opcode::named(written.opcode) else { return unsupported(written) };
    match opcode {
        Addc | Subc | Madc => carry::carry(opcode, written),
        Add | Sub | Mad if written.modifiers.contains(&"cc") => carry::carry(opcode, written),
        Add | Sub | Mul | Mad | Div | Min | Max | Abs | Neg if is_float(written) => {
            float::float(opcode, written)
        }
        Fma | Rcp | Sqrt | Rsqrt | Ex2 | Lg2 | Sin | Cos | Tanh | Copysign => float::float(opcode, written),
        Testp => float::testp(written),
        Add | Min | Max if is_pair(written) => parts::pair(opcode, written),
        Add | Sub | Mul | Mad | Div | Rem | Min | Max | Abs | Neg | Sad | Mul24 => {
            integer::integer(opcode, written)
        }
        Mad24 => integer::mad24(written),
        And | Or | Xor | Not | Cnot => logic::logic(opcode, written),
        Shl | Shr => logic::shift(opcode, written),
        Shf => logic::shf(written),
        Lop3 => logic::lop3(written),
        Popc | Clz | Brev | Bfind => bits::bits(opcode, written),
        Fns => bits::fns(written),
        Bmsk => bits::bmsk(written),
        Szext => bits::szext(written),
        Bfe => bits::bfe(written),
        Bfi => bits::bfi(written),
        Dp4a => parts::dp4a(written),
        Dp2a => parts::dp2a(written),
        Vadd2 | Vsub2 | Vavrg2 | Vabsdiff2 | Vmin2 | Vmax2 | Vadd4 | Vsub4 | Vavrg4 | Vabsdiff4 | Vmin4
        | Vmax4 => parts::video(opcode, written),
        Setp => compare::setp(written),
        Set => compare::set(written),
        Selp => compare::selp(written),
        Slct => compare::slct(written),
        Mov => transfer::mov(written),
        Prmt => transfer::prmt(written),
        Cvta => transfer::cvta(written),
        Isspacep => transfer::isspacep(written),
        Cvt => convert::cvt(written),
        Ld | Ldu => memory::ld(opcode, written),
        St | Red if written.modifiers.first() == Some(&"async") => {
            cluster::store_async(written, opcode == Red)
        }
        Mapa => cluster::mapa(written),
        Getctarank => cluster::getctarank(written),
        St => memory::st(opcode, written),
        Atom | Red if vector::elements(written).is_some() => vector::atomic(written, opcode == Atom),
        Atom => memory::atomic(written, true),
        Red => memory::atomic(written, false),
        Cp if matches!(written.modifiers.get(1), Some(&"mbarrier")) => mbarrier::arrive_after_copies(written),
        Cp if written.modifiers.contains(&"tensor") => tensor::copy(written),
        Cp if written.modifiers.first() == Some(&"reduce") => bulk::reduction(written),
        Cp if matches!(written.modifiers.get(1), Some(&"bulk")) => bulk::copy(written),
        Cp => memory::cp_async(written),
        Tex => texture::tex(written),
        Tld4 => texture::tld4(written),
        Txq => texture::query(written, false),
        Suq => texture::query(written, true),
        Suld => texture::surface(written, false),
        Sust => texture::surface(written, true),
        Prefetch | Prefetchu => memory::prefetch(opcode, written),
        Createpolicy => hint::createpolicy(written),
        Applypriority => hint::applypriority(written),
        Griddepcontrol => hint::griddepcontrol(written),
        Setmaxnreg => hint::setmaxnreg(written),
        Bra => control::bra(written),
        Brx => control::brx(written),
        Call => control::call(written),
        Ret => control::ret(written),
        Exit => control::alone(written, Form::Exit),
        Trap => control::alone(written, Form::Trap),
        Nanosleep => control::nanosleep(written),
        Barrier if written.modifiers.first() == Some(&"cluster") => cluster::barrier(written),
        Bar | Barrier => barrier::barrier(opcode, written),
        Membar => barrier::membar(written),
        Fence => barrier::fence(written),
        Mbarrier => mbarrier::mbarrier(written),
        Shfl => warp::shfl(written),
        Vote => warp::vote(written),
        Match => warp::match_(written),
        Redux => warp::redux(written),
        Elect => warp::elect(written),
        Activemask => warp::activemask(written),
        Ldmatrix => matrix::ldmatrix(written),
        Stmatrix => matrix::stmatrix(written),
        Movmatrix => matrix::movmatrix(written),
        Mma => matrix::mma(written),
        Wmma => wmma::wmma(written),
    }
}

fn is_pair(written: &Written<'_>) -> bool {
    matches!(written.modifiers.last(), Some(&("u16x2" | "s16x2")))
}

fn is_float(written: &Written<'_>) -> bool {
    written.modifiers.last().and_then(|name| Type::named(name)).is_some_and(Type::is_float)
}
