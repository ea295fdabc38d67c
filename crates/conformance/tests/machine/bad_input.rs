//! Invalid PTX. Each text must be rejected quickly, without using much memory, and with an error that names the line.

use std::time::Duration;

use virtual_gpu_ptx::{self as ptx, LoadError};

use crate::processor_time::processor_time;

const HEAD: &str = ".version 8.0\n.target sm_70\n.address_size 64\n";

/// The processor time that a rejection may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a kernel with this body, which starts on line 6.
fn kernel(body: &str) -> String {
    format!("{HEAD}.visible .entry f(.param .u64 p)\n{{\n{body}\nret;\n}}\n")
}

/// Loads a source that must be rejected quickly.
#[track_caller]
fn refused(source: &str) -> LoadError {
    let (loaded, took) = processor_time(|| ptx::load(source));
    let error = match loaded {
        Ok(_) => panic!("this must not load: {}", &source[..source.len().min(300)]),
        Err(error) => error,
    };
    assert!(took < TIMEOUT, "{took:?}: {error}");
    error
}

#[track_caller]
fn assert_refused(source: &str, line: u32, words: &str) {
    let error = refused(source);
    let found = error.diagnostics().iter().any(|one| one.line == line && one.text.contains(words));
    assert!(found, "no `{words}` on line {line}: {error}");
}

/// Checks that an instruction of a kernel for sm_90 with these registers and variables is refused: at its line, by its name,
/// and with these words.
#[track_caller]
pub(crate) fn assert_refused_by_name(declarations: &str, instruction: &str, words: &str) {
    let error = refused(&format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry f() {{\n{declarations}\n{instruction}\nret;\n}}\n"
    ));
    let name = instruction.split([' ', ';']).next().unwrap_or_default();
    let found = error
        .diagnostics()
        .iter()
        .any(|one| one.line == 6 && one.text.contains(name) && one.text.contains(words));
    assert!(found, "{instruction}: {error}");
}

#[test]
fn a_kernel_cut_off_at_every_byte() {
    let source = include_str!("../ptx/axpy.ptx");
    let last = source.rfind('}').unwrap();
    let first = source.find(".visible").unwrap();
    for end in first..last {
        // A text that ends between two kernels is complete.
        if source[..end].trim_end().ends_with('}') || source[..end].matches('{').count() == 0 {
            let _ = ptx::load(&source[..end]);
            continue;
        }
        let inside = source[..end].matches('{').count() > source[..end].matches('}').count();
        if inside {
            let error = refused(&source[..end]);
            assert!(error.diagnostics().iter().any(|one| one.line > 0), "{end}: {error}");
        }
    }
}

#[test]
fn texts_in_other_encodings() {
    let ascii = kernel("mov.u32 %r1, 1;");
    let wide: Vec<u8> = ascii.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in
        [&wide[..], &[&[0xff, 0xfe], &wide[..]].concat(), b"\x7fELF\x02\x01\x01\0\0\0\0", &[0x50; 4000]]
    {
        let error = refused(&String::from_utf8_lossy(bytes));
        assert!(error.to_string().contains("not PTX"), "{error}");
    }
    assert_refused(&ascii.replace("mov", "m\u{f6}v"), 6, "unexpected");
}

#[test]
fn texts_of_many_megabytes() {
    let error = refused(&" ".repeat(100 << 20));
    assert!(error.to_string().contains("100 MiB"), "{error}");
    for filling in ["; ", "{", "(", "mov.u32 %r1, %r2;\n", ".reg .b32 %r<9>;\n", "a:\n", "0 ", "\"", "/* "] {
        refused(&kernel(&filling.repeat((2 << 20) / filling.len())).replace("f(.param", "f(.zork"));
    }
}

#[test]
fn a_hundred_megabytes_of_memory_for_no_variable() {
    // Declared registers cost nothing until they are used.
    assert!(ptx::load(&kernel(".reg .b32 %r<1000000000>;\nmov.u32 %r999999999, 1;")).is_ok());
    assert_refused(&kernel(".reg .b32 %r<10>;\nmov.u32 %r10, 1;"), 7, "%r10");
    assert_refused(&kernel(".reg .b32 %r<99999999999>;"), 6, "out of range");
    assert_refused(&kernel(".local .align 8 .b8 x[1000000000];"), 6, "local memory");
    assert_refused(&kernel(".shared .align 8 .b8 x[1000000000];"), 6, "shared memory");
    assert_refused(&kernel(".shared .align 8 .b8 x[4000000000][4000000000];"), 6, "too large");
    assert_refused(&kernel(".local .align 8 .b8 x[-1];"), 6, "out of range");
    let sum: String = (0..20_000).map(|i| format!(".shared .b8 s{i}[100000];\n")).collect();
    assert!(refused(&kernel(&sum)).to_string().contains("shared memory"));
}

#[test]
fn initial_values_without_end() {
    let values = "1, ".repeat(300_000);
    let variable =
        |kind: &str, size: &str| format!("{HEAD}.global .align 4 .{kind} x[{size}] = {{{values}1}};\n");
    assert_refused(&variable("u8", "1000"), 4, "more initial values");
    assert!(ptx::load(&variable("u32", "300001")).is_ok());
    assert_refused(&format!("{HEAD}.global .u32 x[4] = {{{}1}};\n", "{".repeat(100_000)), 4, "expected");
    assert_refused(&format!("{HEAD}.global .u32 x = 99999999999999999999999;\n"), 4, "a number");
    assert_refused(&format!("{HEAD}.global .u64 x = nothing;\n"), 4, "`nothing`");
    let vector = format!("ld.global.v4.u32 {{{}%r1}}, [p];", "%r1, ".repeat(100_000));
    assert_refused(&kernel(&format!(".reg .b32 %r<2>;\n{vector}")), 7, "destinations");
}

#[test]
fn missing_and_duplicate_names() {
    assert_refused(&kernel("bra NOWHERE;"), 6, "NOWHERE");
    assert_refused(&kernel(".reg .b32 a;\n.reg .f32 a;"), 7, "`a` is declared twice");
    assert_refused(&kernel(".reg .b32 %r<3>;\n.reg .b64 %r<5>;"), 7, "`%r` is declared twice");
    assert_refused(&kernel("here:\nhere:\nbra here;"), 4, "`here` is declared twice");
    assert_refused(&kernel(".shared .b8 x[4];\n.local .b8 x[8];"), 7, "`x` is declared twice");
    assert_refused(&format!("{HEAD}.global .u32 x;\n.global .u64 x;\n"), 5, "`x` is declared twice");
    let addresses = format!("{HEAD}.global .u64 x = y;\n.global .u64 y;\n.global .u64 x;\n");
    assert_refused(&addresses, 6, "`x` is declared twice");
    assert_refused(
        &addresses.replace("x = y;\n", "x;\n").replace("y;\n.global .u64 x;", "y;\n.global .u64 x = y;"),
        6,
        "`x` is declared twice",
    );
    let twice = format!("{}.visible .entry f()\n{{\nret;\n}}\n", kernel(""));
    assert_refused(&twice, 9, "`f` is defined twice");
    // Different scopes may use the same name, and a declared function may be defined later.
    assert!(
        ptx::load(&kernel(".reg .b32 a;\n{ .reg .f32 a; here: bra here; }\n{ here: bra here; }")).is_ok()
    );
    let declared = format!("{HEAD}.func g();\n.func g() {{ ret; }}\n.extern .shared .b8 x[];\n");
    assert!(ptx::load(&declared).is_ok());
}

#[test]
fn calls_without_end() {
    let mutual = ".func f() { call g; ret; }\n.func g() { call f; ret; }\n";
    assert!(ptx::load(&format!("{HEAD}{mutual}")).is_ok());
    let itself = kernel("call f, (p);").replace("f(.param", "f(.param .u64 q, .param");
    assert_refused(&itself, 6, "is a kernel");
    let tower: String =
        (0..40).map(|i| format!(".func f{i}() {{ call f{}; call f{}; ret; }}\n", i + 1, i + 1)).collect();
    refused(&format!("{HEAD}{tower}.func f40() {{ ret; }}\n"));
    // The table holds pointers to functions that themselves call through pointers.
    let table = ".global .u64 table[3] = {a, b, c};\n";
    let body = "{ .reg .b64 %x; ld.global.u64 %x, [table]; call %x, (), proto; ret; }";
    let functions: String = ["a", "b", "c"].iter().map(|name| format!(".func {name}() {body}\n")).collect();
    let source = format!("{HEAD}{table}{functions}.visible .entry k() {body}\n");
    let (_, took) = processor_time(|| ptx::load(&source));
    assert!(took < TIMEOUT, "{took:?}");
}

#[test]
fn every_version_and_target_is_taken() {
    for version in 30..100 {
        let source = kernel("").replace("8.0", &format!("{}.{}", version / 10, version % 10));
        assert!(ptx::load(&source).is_ok(), "{version}");
    }
    for target in
        ["sm_10", "sm_90a", "sm_123", "sm_100f", "compute_70", "sm_70, debug", "sm_80, texmode_independent"]
    {
        let source = kernel("").replace("sm_70", target);
        assert!(ptx::load(&source).is_ok(), "{target}");
    }
}

#[test]
fn instructions_of_tensor_cores_and_textures_are_refused_by_name() {
    let instructions = [
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r5];",
        "wgmma.fence.sync.aligned;",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r5}, {%f1};",
        "mma.sync.aligned.m8n8k8.row.col.f64.f64.f64.f64 {%r1}, {%r1}, {%r5}, {%r1};",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64.rna {%r1}, {%r1}, {%r5}, {%r1};",
        "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r5}, {%f1}, %r1, 0;",
        "wmma.load.a.sync.aligned.row.m8n8k32.s8 {%r1}, [%r5];",
        "cp.async.mbarrier.arrive.global.b64 [%r1];",
        "wgmma.fence.sync.aligned;",
        "tex.2dms.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2, %r3, %r3}];",
        "sust.p.1d.b32.trap [%rd1, {%r2}], {%r1};",
        "tensormap.replace.tile.global_address.global.b1024.b64 [%r1], %r2;",
        "mbarrier.init.shared.b32 [%r1], 4;",
        "cvt.rn.satfinite.e2m1x2.f32 %h1, %f1, %f2;",
    ];
    let registers = ".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b16 %h<9>;";
    for (at, instruction) in instructions.iter().enumerate() {
        let name = instruction.split(' ').next().unwrap_or("").trim_end_matches(';');
        let body = format!("{registers}\n{}{instruction}", "\n".repeat(at));
        assert_refused(&kernel(&body), 7 + at as u32, name);
    }
}
