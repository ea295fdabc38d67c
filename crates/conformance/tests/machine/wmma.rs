//! Compares `wmma` with plain loops, in every type, shape, layout, and state space.

use half::{bf16, f16};
use virtual_gpu_machine::FaultKind;

use crate::arguments;
use crate::bad_input::assert_refused_by_name;
use crate::gpu::{Gpu, Numbers};

/// A form of `wmma.mma`: the shape, the types of the multiplicands, of `c`, and of `d`, and the rest of the name.
#[derive(Clone, Copy)]
struct Form {
    shape: &'static str,
    /// The rows of `a`, the columns of `b`, and the columns of `a`.
    extents: [usize; 3],
    multiplicand: &'static str,
    c: &'static str,
    d: &'static str,
    /// The number of registers for `a` and `b`, from the manual's tables.
    registers: [usize; 2],
}

const SQUARE: (&str, [usize; 3]) = ("m16n16k16", [16, 16, 16]);
const WIDE: (&str, [usize; 3]) = ("m8n32k16", [8, 32, 16]);
const TALL: (&str, [usize; 3]) = ("m32n8k16", [32, 8, 16]);

fn forms() -> Vec<Form> {
    let mut forms = Vec::new();
    for (at, (shape, extents)) in [SQUARE, WIDE, TALL].into_iter().enumerate() {
        for (c, d) in [("f16", "f16"), ("f16", "f32"), ("f32", "f16"), ("f32", "f32")] {
            forms.push(Form { shape, extents, multiplicand: "f16", c, d, registers: [8, 8] });
        }
        let registers = [[4, 4], [2, 8], [8, 2]][at];
        forms.push(Form { shape, extents, multiplicand: "bf16", c: "f32", d: "f32", registers });
        let registers = [[2, 2], [1, 4], [4, 1]][at];
        for multiplicand in ["s8", "u8"] {
            forms.push(Form { shape, extents, multiplicand, c: "s32", d: "s32", registers });
        }
    }
    let (shape, extents) = ("m16n16k8", [16, 16, 8]);
    forms.push(Form { shape, extents, multiplicand: "tf32", c: "f32", d: "f32", registers: [4, 4] });
    let (shape, extents) = ("m8n8k4", [8, 8, 4]);
    forms.push(Form { shape, extents, multiplicand: "f64", c: "f64", d: "f64", registers: [1, 1] });
    forms
}

/// Returns a number's bytes in a type.
fn encode(kind: &str, value: f64) -> Vec<u8> {
    match kind {
        "f16" => f16::from_f64(value).to_le_bytes().to_vec(),
        "bf16" => bf16::from_f64(value).to_le_bytes().to_vec(),
        "tf32" | "f32" => (value as f32).to_le_bytes().to_vec(),
        "f64" => value.to_le_bytes().to_vec(),
        "s8" => vec![value as i8 as u8],
        "u8" => vec![value as u8],
        _ => (value as i32).to_le_bytes().to_vec(),
    }
}

fn decode(kind: &str, bytes: &[u8]) -> f64 {
    match kind {
        "f16" => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        "bf16" => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        "tf32" => f64::from(f32::from_bits(u32::from_le_bytes(bytes.try_into().unwrap()) & !0x1fff)),
        "f32" => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        "f64" => f64::from_le_bytes(bytes.try_into().unwrap()),
        "s8" => f64::from(bytes[0] as i8),
        "u8" => f64::from(bytes[0]),
        _ => f64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
    }
}

/// A matrix in memory.
#[derive(Clone, Copy)]
struct Stored {
    kind: &'static str,
    rows: usize,
    columns: usize,
    by_columns: bool,
    /// Elements between the end of a row (column) and the start of the next.
    padding: usize,
}

impl Stored {
    fn layout(&self) -> &'static str {
        if self.by_columns { "col" } else { "row" }
    }

    fn size(&self) -> usize {
        encode(self.kind, 0.0).len()
    }

    fn stride(&self) -> usize {
        self.padding + if self.by_columns { self.rows } else { self.columns }
    }

    fn place(&self, row: usize, column: usize) -> usize {
        if self.by_columns { column * self.stride() + row } else { row * self.stride() + column }
    }

    fn bytes(&self) -> usize {
        self.size() * self.stride() * if self.by_columns { self.columns } else { self.rows }
    }

    /// Returns the bytes of a matrix whose elements are given row by row.
    fn store(&self, elements: &[f64]) -> Vec<u8> {
        let mut bytes = vec![0x55; self.bytes()];
        for (at, &element) in elements.iter().enumerate() {
            let place = self.place(at / self.columns, at % self.columns) * self.size();
            bytes[place..place + self.size()].copy_from_slice(&encode(self.kind, element));
        }
        bytes
    }

    fn load(&self, bytes: &[u8]) -> Vec<f64> {
        let place = |at: usize| self.place(at / self.columns, at % self.columns) * self.size();
        (0..self.rows * self.columns)
            .map(|at| decode(self.kind, &bytes[place(at)..place(at) + self.size()]))
            .collect()
    }
}

/// How a product is computed.
#[derive(Clone, Copy, Default)]
struct Options {
    /// Whether `a`, `b`, `c`, and `d` are stored by columns.
    by_columns: [bool; 4],
    padding: usize,
    /// `.global`, `.shared`, or nothing.
    space: &'static str,
    /// A modifier of `wmma.mma`: before or after the types.
    rounding: &'static str,
    satfinite: &'static str,
    /// Instructions between the loads and the product, for registers such as `%a0` or `%c3`.
    between: &'static str,
}

impl Form {
    /// Returns `a`, `b`, `c`, and `d` in memory.
    fn matrices(&self, options: Options) -> [Stored; 4] {
        let [m, n, k] = self.extents;
        let kinds = [self.multiplicand, self.multiplicand, self.c, self.d];
        let extents = [(m, k), (k, n), (m, n), (m, n)];
        std::array::from_fn(|at| {
            let (rows, columns) = extents[at];
            let padding = options.padding * 16 / encode(kinds[at], 0.0).len();
            Stored { kind: kinds[at], rows, columns, by_columns: options.by_columns[at], padding }
        })
    }

    fn accumulator_registers(&self, kind: &str) -> usize {
        match kind {
            "f16" => 4,
            "f64" => 2,
            _ => 8,
        }
    }

    /// Returns the PTX of a kernel that loads `a`, `b`, and `c`, multiplies, and stores `d`. In shared memory, all
    /// matrices are copied from and to global memory.
    fn source(&self, options: Options) -> String {
        let [a, b, c, d] = self.matrices(options);
        let counts = [
            self.registers[0],
            self.registers[1],
            self.accumulator_registers(self.c),
            self.accumulator_registers(self.d),
        ];
        let list = |name: &str, count: usize| {
            (0..count).map(|at| format!("%{name}{at}")).collect::<Vec<_>>().join(", ")
        };
        let [of_a, of_b, of_c, of_d] = [("a", 0), ("b", 1), ("c", 2), ("d", 3)]
            .map(|(name, at)| format!("{{{}}}", list(name, counts[at])));
        let register = if self.multiplicand == "f64" { "f64" } else { "b32" };
        let types = match self.multiplicand {
            "f16" => format!("{}.{}", self.d, self.c),
            kind => format!("{}.{kind}.{kind}.{}", self.d, self.c),
        };
        let Options { space, rounding, satfinite, between, .. } = options;
        let shape = self.shape;
        let stride = |matrix: &Stored| match matrix.padding {
            0 => String::new(),
            _ => format!(", {}", matrix.stride()),
        };
        let (copy_in, copy_out) = match space {
            ".shared" => (
                [(0, a), (1, b), (2, c), (3, d)]
                    .map(|(at, matrix)| {
                        copy(&format!("[%p{at}+%o]"), &format!("[tile{at}+%o]"), matrix.bytes())
                    })
                    .concat()
                    + "bar.sync 0; mov.u64 %p0, tile0; mov.u64 %p1, tile1; mov.u64 %p2, tile2;
                       mov.u64 %p4, %p3; mov.u64 %p3, tile3;",
                "bar.sync 0;".to_owned() + &copy("[tile3+%o]", "[%p4+%o]", d.bytes()),
            ),
            _ => (String::new(), String::new()),
        };
        format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n
            .visible .entry test(.param .u64 x, .param .u64 y, .param .u64 z, .param .u64 out)
            {{
            .reg .{register} %a<8>, %b<8>, %c<8>, %d<8>;
            .reg .b64 %p<6>, %q<4>; .reg .b32 %o, %w; .reg .b8 %h; .reg .pred %t;
            .shared .align 32 .b8 tile0[{}]; .shared .align 32 .b8 tile1[{}];
            .shared .align 32 .b8 tile2[{}]; .shared .align 32 .b8 tile3[{}];
            ld.param.u64 %p0, [x]; ld.param.u64 %p1, [y]; ld.param.u64 %p2, [z]; ld.param.u64 %p3, [out];
            {copy_in}
            wmma.load.a.sync.aligned.{}.{shape}{space}.{} {of_a}, [%p0]{};
            wmma.load.b.sync.aligned.{}.{shape}{space}.{} {of_b}, [%p1]{};
            wmma.load.c.sync.aligned.{}.{shape}{space}.{} {of_c}, [%p2]{};
            {between}
            wmma.mma.sync.aligned.{}.{}.{shape}{rounding}.{types}{satfinite} {of_d}, {of_a}, {of_b}, {of_c};
            wmma.store.d.sync.aligned.{}.{shape}{space}.{} [%p3], {of_d}{};
            {copy_out}
            ret;
            }}",
            a.bytes(),
            b.bytes(),
            c.bytes(),
            d.bytes(),
            a.layout(),
            a.kind,
            stride(&a),
            b.layout(),
            b.kind,
            stride(&b),
            c.layout(),
            c.kind,
            stride(&c),
            a.layout(),
            b.layout(),
            d.layout(),
            d.kind,
            stride(&d),
        )
    }

    /// Multiplies matrices that are given row by row. Returns the machine's result, and the bytes around it.
    fn run(&self, options: Options, [a, b, c]: [&[f64]; 3]) -> (Vec<f64>, Vec<u8>) {
        let matrices = self.matrices(options);
        let source = self.source(options);
        let mut gpu = Gpu::new(&source);
        let [x, y, z] =
            [(0, a), (1, b), (2, c)].map(|(at, elements)| gpu.buffer(&matrices[at].store(elements)));
        let out = gpu.buffer(&vec![0x55_u8; matrices[3].bytes()]);
        let done = gpu.run("test", 1, 32, arguments!(x, y, z, out));
        assert!(done.race.is_none() && done.unwritten.is_none(), "{source}: {:?}", done.race);
        let bytes = gpu.read::<u8>(out);
        (matrices[3].load(&bytes), bytes)
    }

    /// Returns the exact product of matrices after rounding their elements to their types.
    fn product(&self, [a, b, c]: [&[f64]; 3]) -> Vec<f64> {
        let [m, n, k] = self.extents;
        let rounded = |kind: &str, value: f64| decode(kind, &encode(kind, value));
        let element = |row: usize, column: usize| {
            let terms = (0..k).map(|at| {
                rounded(self.multiplicand, a[row * k + at]) * rounded(self.multiplicand, b[at * n + column])
            });
            terms.sum::<f64>() + rounded(self.c, c[row * n + column])
        };
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    /// Returns matrices of small whole numbers.
    fn whole(&self, numbers: &mut Numbers) -> [Vec<f64>; 3] {
        let [m, n, k] = self.extents;
        let lowest = if self.multiplicand == "u8" { 0.0 } else { -4.0 };
        [m * k, k * n, m * n]
            .map(|count| (0..count).map(|_| (numbers.next() >> 32) as f64 % 9.0 + lowest).collect())
    }
}

/// Returns PTX in which 32 threads copy bytes, one at a time.
fn copy(from: &str, to: &str, bytes: usize) -> String {
    // The manual has no address with two registers, so each address is computed first.
    let address = |d: &str, operand: &str| {
        let name = operand.trim_start_matches('[').trim_end_matches("+%o]");
        format!("mov.u64 {d}, {name}; cvt.u64.u32 %q3, %o; add.u64 {d}, {d}, %q3;")
    };
    let space = |operand: &str| if operand.starts_with("[tile") { "shared" } else { "global" };
    let label = format!("L{}_{bytes}", from.chars().filter(char::is_ascii_alphanumeric).collect::<String>());
    format!(
        "mov.u32 %o, %tid.x;
        {label}: {} {}
        ld.{}.b8 %h, [%q1]; st.{}.b8 [%q2], %h;
        add.u32 %o, %o, 32; setp.lt.u32 %t, %o, {bytes}; @%t bra {label};\n",
        address("%q1", from),
        address("%q2", to),
        space(from),
        space(to),
    )
}

#[test]
fn products_of_whole_numbers_are_exact_in_every_form_layout_and_space() {
    let mut numbers = Numbers(21);
    for form in forms() {
        for layouts in 0..16 {
            let by_columns = std::array::from_fn(|at| layouts >> at & 1 != 0);
            let (space, padding) = [("", 0), (".global", 2), (".shared", 2), (".shared", 0)][layouts % 4];
            let options = Options { by_columns, padding, space, ..Options::default() };
            let [a, b, c] = form.whole(&mut numbers);
            let (product, bytes) = form.run(options, [&a, &b, &c]);
            let expected = form.product([&a, &b, &c]);
            assert_eq!(product, expected, "{}", form.source(options));
            // Nothing is written between the rows.
            assert_eq!(bytes, form.matrices(options)[3].store(&expected));
        }
    }
}

#[test]
fn products_of_fractions_are_rounded_once() {
    let mut numbers = Numbers(22);
    for form in forms().into_iter().filter(|form| form.c != "s32" && form.c != "f64") {
        let [m, n, k] = form.extents;
        let [a, b, c] = [m * k, k * n, m * n]
            .map(|count| numbers.floats(count).into_iter().map(f64::from).collect::<Vec<_>>());
        let (product, _) = form.run(Options::default(), [&a, &b, &c]);
        let expected = form.product([&a, &b, &c]);
        let rounded: Vec<f64> = expected.iter().map(|&x| decode(form.d, &encode(form.d, x))).collect();
        assert_eq!(product, rounded, "{} {}", form.shape, form.multiplicand);
    }
}

#[test]
fn double_precision_is_rounded_in_the_given_direction() {
    let form = forms().pop().unwrap();
    let mut a = [0.0; 32];
    let b = [1.0; 32];
    // Row 0 has the sum 1 + 2^-60, and row 1 the sum -1 - 2^-60.
    (a[0], a[1], a[4], a[5]) = (1.0, 2f64.powi(-60), -1.0, -2f64.powi(-60));
    let above = 1.0 + f64::EPSILON;
    for (rounding, expected) in [
        ("", [1.0, -1.0]),
        (".rn", [1.0, -1.0]),
        (".rz", [1.0, -1.0]),
        (".rm", [1.0, -above]),
        (".rp", [above, -1.0]),
    ] {
        let options = Options { rounding, ..Options::default() };
        let (product, _) = form.run(options, [&a, &b, &[0.0; 64]]);
        assert_eq!([product[0], product[8]], expected, "{rounding}");
    }
}

#[test]
fn integers_wrap_or_are_clamped() {
    let form = forms().into_iter().find(|form| form.multiplicand == "s8").unwrap();
    let (a, b) = ([100.0; 256], [100.0; 256]);
    let mut c = [f64::from(i32::MAX); 256];
    c[1] = f64::from(i32::MIN);
    let sum = i32::MAX.wrapping_add(160_000);
    for (satfinite, expected) in [("", sum), (".satfinite", i32::MAX)] {
        let options = Options { satfinite, ..Options::default() };
        let (product, _) = form.run(options, [&a, &b, &c]);
        assert_eq!(product[0], f64::from(expected));
        assert_eq!(product[1], f64::from(i32::MIN + 160_000));
    }
    let minus = [-100.0; 256];
    let options = Options { satfinite: ".satfinite", ..Options::default() };
    assert_eq!(form.run(options, [&a, &minus, &c]).0[1], f64::from(i32::MIN));
}

#[test]
fn a_fragment_can_be_scaled_element_by_element() {
    let mut numbers = Numbers(23);
    for form in forms() {
        let between: String = match (form.multiplicand, form.c) {
            ("f64", _) => "add.f64 %a0, %a0, %a0; neg.f64 %c0, %c0; neg.f64 %c1, %c1;".to_owned(),
            ("f16", "f16") => {
                (0..8).map(|at| format!("add.f16x2 %a{at}, %a{at}, %a{at};")).collect::<String>()
                    + &(0..4).map(|at| format!("neg.f16x2 %c{at}, %c{at};")).collect::<String>()
            }
            _ => continue,
        };
        let [a, b, c] = form.whole(&mut numbers);
        let options = Options { between: between.leak(), ..Options::default() };
        let (product, _) = form.run(options, [&a, &b, &c]);
        let twice: Vec<f64> = a.iter().map(|x| 2.0 * x).collect();
        let minus: Vec<f64> = c.iter().map(|x| -x).collect();
        assert_eq!(product, form.product([&twice, &b, &minus]), "{} {}", form.shape, form.c);
    }
}

/// Runs a kernel with this body on `threads`, with the address of 4 KiB of zeros in `%p`.
fn outcome(body: &str, threads: u32) -> Result<String, Box<virtual_gpu_machine::Fault>> {
    let source = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry test(.param .u64 x)
        {{
        .reg .b32 %r<9>; .reg .b64 %p, %q; .reg .pred %t; .shared .align 32 .b8 tile[1024];
        ld.param.u64 %p, [x]; mov.u32 %r8, %tid.x; mov.u64 %q, tile;
        {body}
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source);
    let x = gpu.buffer(&[0_u8; 4096]);
    let done = gpu.launch("test", [1; 3], [threads, 1, 1], arguments!(x))?;
    Ok(done.race.map_or_else(String::new, |race| race.to_string()))
}

const ALL: &str = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}";

#[test]
fn a_matrix_must_be_aligned_and_inside_its_allocation() {
    let load = |offset: i32, stride: i32| {
        let body =
            format!("wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {ALL}, [%p+{offset}], {stride};");
        outcome(&body, 32)
    };
    assert!(load(0, 16).is_ok() && load(32, 20).is_ok());
    assert!(matches!(load(16, 16).unwrap_err().kind, FaultKind::Misaligned { needed: 32 }));
    assert!(matches!(load(0, 17).unwrap_err().kind, FaultKind::Misaligned { needed: 16 }));
    let fault = load(3072 + 32, 16).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::BadAddress(_)), "{fault}");
    assert!(fault.to_string().contains("reads 16 bytes"), "{fault}");
    let body = format!("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%q], {ALL}, 32;");
    let fault = outcome(&body, 32).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::SharedOutOfBounds { size: 1024 }), "{fault}");
}

#[test]
fn hardware_does_not_notice_how_a_matrix_is_aligned() {
    for (offset, stride, needed) in [(4, 16, 32), (0, 17, 16), (0, 16, 0)] {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n
            .visible .entry test(.param .u64 x, .param .u64 y)
            {{
            .reg .b32 %r<8>; .reg .b64 %p, %q;
            ld.param.u64 %p, [x]; ld.param.u64 %q, [y];
            wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {ALL}, [%p+{offset}], {stride};
            wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%q+{offset}], {ALL}, {stride};
            ret;
            }}"
        );
        let mut gpu = Gpu::new(&source);
        gpu.is_lenient = true;
        let numbers: Vec<u32> = (0..300).collect();
        let (x, y) = (gpu.buffer(&numbers), gpu.buffer(&[0_u32; 300]));
        let done = gpu.launch("test", [1; 3], [32, 1, 1], arguments!(x, y)).unwrap();
        let unnoticed = done.unnoticed.map(|fault| fault.kind);
        match (needed, &unnoticed) {
            (0, None) => {}
            (needed, Some(FaultKind::Misaligned { needed: found })) if needed == *found => {}
            _ => panic!("{offset}, {stride}: {unnoticed:?}"),
        }
        let start = offset / 4;
        let is_in =
            |at: usize| (0..16).any(|row| (start + row * stride..start + row * stride + 16).contains(&at));
        let expected: Vec<u32> = (0..300).map(|at| if is_in(at) { at as u32 } else { 0 }).collect();
        assert_eq!(gpu.read::<u32>(y), expected);
    }
}

#[test]
fn a_matrix_in_shared_memory_is_ordered_by_barriers() {
    let fill = "shl.b32 %r1, %r8, 2; cvt.u64.u32 %p, %r1; add.u64 %p, %p, %q;
        st.shared.u32 [%p], %r8; st.shared.u32 [%p+128], %r8; st.shared.u32 [%p+256], %r8;
        st.shared.u32 [%p+384], %r8; st.shared.u32 [%p+512], %r8; st.shared.u32 [%p+640], %r8;
        st.shared.u32 [%p+768], %r8; st.shared.u32 [%p+896], %r8;";
    let load = format!("wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {ALL}, [%q];");
    let race = outcome(&format!("{fill} {load}"), 32).unwrap();
    assert!(race.contains("read after write") && race.contains("reads 16 bytes"), "{race}");
    assert_eq!(outcome(&format!("{fill} bar.warp.sync -1; {load}"), 32).unwrap(), "");
    let store = format!("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%q], {ALL};");
    let race = outcome(&format!("{store} {fill}"), 32).unwrap();
    assert!(race.contains("write after write") && race.contains("writes 16 bytes"), "{race}");
    assert_eq!(outcome(&format!("{store} bar.sync 0; {fill}"), 32).unwrap(), "");
}

#[test]
fn a_matrix_needs_a_whole_warp() {
    let load = format!("wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {ALL}, [%p];");
    let fault = outcome(&load, 16).unwrap_err();
    assert!(matches!(fault.kind, FaultKind::DivergentWarp { .. }), "{fault}");
    let body = format!("setp.lt.u32 %t, %r8, 5; @%t {load}");
    assert!(matches!(outcome(&body, 32).unwrap_err().kind, FaultKind::DivergentWarp { .. }));
}

#[test]
fn forms_that_do_not_exist_are_refused_by_name() {
    let eight = ALL;
    for (instruction, words) in [
        (format!("wmma.load.a.sync.aligned.row.m16n16k16.f32 {eight}, [%p];"), "unsupported"),
        (format!("wmma.load.a.sync.aligned.row.m16n16k8.f16 {eight}, [%p];"), "unsupported"),
        (format!("wmma.load.c.sync.aligned.row.m16n16k8.f16 {eight}, [%p];"), "unsupported"),
        (format!("wmma.load.a.sync.aligned.m16n16k16.f16 {eight}, [%p];"), "unsupported"),
        (format!("wmma.load.a.sync.aligned.row.m16n16k16.local.f16 {eight}, [%p];"), "unsupported"),
        (format!("wmma.load.d.sync.aligned.row.m16n16k16.f16 {eight}, [%p];"), "unsupported"),
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0}, [%p];".to_owned(), "8 registers"),
        (format!("wmma.load.a.sync.aligned.row.m16n16k16.f16 {eight};"), "operands"),
        (format!("wmma.store.d.sync.aligned.row.m16n16k16.bf16 [%p], {eight};"), "unsupported"),
        (
            format!(
                "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32.satfinite {eight}, {eight}, {eight}, {eight};"
            ),
            "unsupported",
        ),
        (
            "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {%r0}, {%r0}, {%r0}, {%r0};".to_owned(),
            "unsupported",
        ),
    ] {
        let declarations = ".reg .b32 %r<9>; .reg .b64 %p;";
        assert_refused_by_name(declarations, &instruction, words);
    }
}

/// Reads `count` numbers of a type.
fn numbers_at<const SIZE: usize>(gpu: &Gpu, kind: &str, address: u64) -> Vec<f64> {
    gpu.read::<u8>(address).chunks(SIZE).map(|bytes| decode(kind, bytes)).collect()
}

#[test]
fn programs_that_use_the_classes_of_cuda_get_the_right_products() {
    let mut gpu = Gpu::new(include_str!("../ptx/tensor_cores.ptx"));
    let mut numbers = Numbers(24);
    let mut whole = |count: usize| -> Vec<f64> {
        (0..count).map(|_| (numbers.next() >> 32) as f64 % 9.0 - 4.0).collect()
    };
    let encoded = |kind: &str, values: &[f64]| -> Vec<u8> {
        values.iter().flat_map(|&value| encode(kind, value)).collect()
    };
    // Each product is compared with the sum of the products of a row and a column.
    let check = |got: &[f64], columns: usize, inner: usize, element: &dyn Fn(usize, usize, usize) -> f64| {
        for (at, &got) in got.iter().enumerate() {
            let expected: f64 = (0..inner).map(|k| element(at / columns, at % columns, k)).sum();
            assert_eq!(got, expected, "row {}, column {}", at / columns, at % columns);
        }
    };

    let n = 48;
    let (a, b) = (whole(n * n), whole(n * n));
    let (x, y) = (gpu.buffer(&encoded("f16", &a)), gpu.buffer(&encoded("f16", &b)));
    let z = gpu.unwritten(4 * n * n);
    let done = gpu.launch("halves", [3, 3, 1], [32, 1, 1], arguments!(x, y, z, n as i32, 0.5_f32)).unwrap();
    assert!(done.race.is_none() && done.unwritten.is_none(), "{:?}", done.race);
    check(&numbers_at::<4>(&gpu, "f32", z), n, n, &|row, column, k| 0.5 * a[row * n + k] * b[column * n + k]);

    let (a, b) = (whole(8 * 16), whole(16 * 32));
    let (x, y) = (gpu.buffer(&encoded("s8", &a)), gpu.buffer(&encoded("s8", &b)));
    let z = gpu.unwritten(4 * 8 * 32);
    gpu.run("bytes", 1, 32, arguments!(x, y, z));
    for (at, got) in numbers_at::<4>(&gpu, "s32", z).into_iter().enumerate() {
        let (row, column) = (at % 8, at / 8);
        let sum: f64 = (0..16).map(|k| a[row * 16 + k] * b[k * 32 + column]).sum();
        assert_eq!(got, sum.max(0.0), "row {row}, column {column}");
    }

    let (a, b) = (whole(8 * 4), whole(4 * 8));
    let (x, y) = (gpu.buffer(&a), gpu.buffer(&b));
    let z = gpu.unwritten(8 * 8 * 8);
    gpu.run("doubles", 1, 32, arguments!(x, y, z));
    check(&numbers_at::<8>(&gpu, "f64", z), 8, 4, &|row, column, k| a[row * 4 + k] * b[k * 8 + column]);
}
