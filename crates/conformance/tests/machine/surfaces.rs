//! `suld`, `sust`, and `suq`: accesses to surfaces.

use virtual_gpu_core::array::{Channel, Format, Geometry, Level};
use virtual_gpu_core::texture::{Object, Surface};
use virtual_gpu_machine::{Access, Execution, Fault};

use crate::arguments;
use crate::gpu::Gpu;

const HANDLE: u64 = 64;

/// Runs a body in one thread, on a surface of 32-bit numbers that count up from 0. `%a`, `%b`, and `%c` are the
/// arguments, and `%w0` to `%w3` are returned, with what the surface has afterwards.
fn run(
    geometry: Geometry,
    extent: [u64; 3],
    body: &str,
    [a, b, c]: [i32; 3],
) -> Result<(Execution, Vec<u32>, Vec<u32>), Box<Fault>> {
    let source = format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 s, .param .u64 y, .param .u32 a, .param .u32 b, .param .u32 c)
        {{
        .reg .b32 %a, %b, %c, %w<4>; .reg .b16 %h<4>; .reg .b64 %s, %y, %l<2>;
        ld.param.u64 %s, [s]; ld.param.u64 %y, [y];
        ld.param.u32 %a, [a]; ld.param.u32 %b, [b]; ld.param.u32 %c, [c];
        mov.b32 %w0, 90; mov.b32 %w1, 91; mov.b32 %w2, 92; mov.b32 %w3, 93;
        {body}
        st.global.v4.b32 [%y], {{%w0, %w1, %w2, %w3}};
        ret;
        }}"
    );
    let mut gpu = Gpu::new(&source).virtual_alone();
    let count = extent.iter().product::<u64>() as u32;
    let base = gpu.buffer(&(0..count).collect::<Vec<u32>>());
    let y = gpu.buffer(&[0_u32; 4]);
    let format = Format { channel: Channel::U32, channels: 1 };
    let level = Level::packed(base, extent, 4);
    gpu.objects.insert(HANDLE, Object::Surface(Surface { geometry, format, level }));
    let done = gpu.launch("test", [1; 3], [1; 3], arguments!(HANDLE, y, a, b, c))?;
    Ok((done, gpu.read(y), gpu.read(base)))
}

#[track_caller]
fn load(geometry: Geometry, extent: [u64; 3], body: &str, at: [i32; 3]) -> Vec<u32> {
    run(geometry, extent, body, at).unwrap_or_else(|fault| panic!("{fault}")).1
}

#[test]
fn loads_at_a_byte_of_a_row() {
    let one = |geometry, extent, place: &str, at| load(geometry, extent, &format!("suld.b.{place};"), at)[0];
    assert_eq!(one(Geometry::Line, [8, 1, 1], "1d.b32.trap {%w0}, [%s, {%a}]", [12, 0, 0]), 3);
    assert_eq!(one(Geometry::Plane, [8, 4, 1], "2d.b32.trap %w0, [%s, {%a, %b}]", [12, 2, 0]), 19);
    assert_eq!(one(Geometry::Volume, [4, 3, 2], "3d.b32.trap {%w0}, [%s, {%a, %b, %c, %c}]", [4, 2, 1]), 21);
    assert_eq!(one(Geometry::Lines, [4, 1, 3], "a1d.b32.zero {%w0}, [%s, {%a, %b}]", [2, 12, 0]), 11);
    let planes = "a2d.b32.cg.trap {%w0}, [%s, {%a, %b, %c, %c}]".replace(".b32.cg", ".cg.b32");
    assert_eq!(one(Geometry::Planes, [4, 3, 2], &planes, [1, 8, 2]), 22);
    // The faces of a cube are layers.
    assert_eq!(one(Geometry::Cube, [2, 2, 6], &planes, [5, 4, 1]), 23);
}

#[test]
fn vectors_of_every_size() {
    let extent = [8, 2, 1];
    let words = "suld.b.2d.v4.b32.trap {%w0, %w1, %w2, %w3}, [%s, {%a, %b}];";
    assert_eq!(load(Geometry::Plane, extent, words, [16, 1, 0]), [12, 13, 14, 15]);
    let longs = "suld.b.2d.v2.b64.trap {%l0, %l1}, [%s, {%a, %b}]; cvt.u32.u64 %w0, %l1; shr.u64 %l0, %l0, 32; cvt.u32.u64 %w1, %l0;";
    assert_eq!(load(Geometry::Plane, extent, longs, [0, 1, 0])[..2], [10, 9]);
    let bytes = "suld.b.2d.v4.b8.trap {%h0, %h1, %h2, %h3}, [%s, {%a, %b}]; cvt.u32.u16 %w0, %h0; cvt.u32.u16 %w1, %h1;";
    assert_eq!(load(Geometry::Plane, extent, bytes, [12, 0, 0])[..2], [3, 0]);
}

#[test]
fn a_store_writes_its_bytes_and_no_others() {
    let store = "sust.b.2d.v2.b16.trap [%s, {%a, %b}], {%h0, %h1};";
    let body = format!("mov.b16 %h0, 0x1234; mov.b16 %h1, 0x5678; {store}");
    let (done, _, words) = run(Geometry::Plane, [4, 2, 1], &body, [8, 1, 0]).unwrap();
    assert_eq!(words, [0, 1, 2, 3, 4, 5, 0x5678_1234, 7]);
    let written = done
        .touched
        .iter()
        .find(|touched| touched.access == Access::Write && touched.ranges.first() == Some(&(24..28)));
    assert!(written.is_some(), "{:?}", done.touched);
    let wide = "sust.b.1d.v4.b32.trap [%s, {%a}], {%w0, %w1, %w2, %w3};";
    let (_, _, words) = run(Geometry::Line, [8, 1, 1], wide, [16, 0, 0]).unwrap();
    assert_eq!(words, [0, 1, 2, 3, 90, 91, 92, 93]);
}

#[test]
fn outside_a_surface_accesses_are_clamped_or_dropped() {
    let at = |outside: &str, place| {
        let body = format!("suld.b.2d.b32.{outside} {{%w0}}, [%s, {{%a, %b}}];");
        load(Geometry::Plane, [4, 2, 1], &body, place)[0]
    };
    assert_eq!([at("clamp", [16, 0, 0]), at("clamp", [-4, 5, 0]), at("clamp", [400, -1, 0])], [3, 4, 3]);
    assert_eq!([at("zero", [16, 0, 0]), at("zero", [0, 2, 0]), at("zero", [-4, 0, 0])], [0; 3]);
    let store = |outside: &str, place| {
        let body = format!("sust.b.2d.b32.{outside} [%s, {{%a, %b}}], {{%w0}};");
        run(Geometry::Plane, [2, 2, 1], &body, place).unwrap().2
    };
    assert_eq!(store("zero", [8, 0, 0]), [0, 1, 2, 3]);
    assert_eq!(store("clamp", [8, 9, 0]), [0, 1, 2, 90]);
}

#[test]
fn a_trap_says_where_the_surface_ends() {
    let fault = |place| {
        run(Geometry::Plane, [4, 2, 1], "sust.b.2d.b32.trap [%s, {%a, %b}], %w0;", place)
            .unwrap_err()
            .to_string()
    };
    let text = fault([16, 1, 0]);
    assert!(
        text.contains("writes 4 bytes at byte 16 of row 1: the surface has 2 rows of 16 bytes"),
        "{text}"
    );
    assert!(fault([-4, 0, 0]).contains("at byte -4 of row 0"));
    assert!(fault([2, 0, 0]).contains("must be a multiple of its size"));
    let layers = "suld.b.a2d.b32.trap {%w0}, [%s, {%a, %b, %c, %c}];";
    let text = run(Geometry::Planes, [4, 2, 3], layers, [3, 0, 0]).unwrap_err().to_string();
    assert!(
        text.contains("reads 4 bytes at byte 0 of row 0 of plane 3: the surface has 3 planes of 2 rows"),
        "{text}"
    );
    let text = run(Geometry::Line, [4, 1, 1], layers, [0, 0, 0]).unwrap_err().to_string();
    assert!(text.contains("another kind of surface"), "{text}");
}

#[test]
fn a_read_of_what_the_same_kernel_wrote_is_reported() {
    let problem = |body: &str| {
        let (done, _, _) = run(Geometry::Line, [8, 1, 1], body, [4, 8, 0]).unwrap();
        done.unnoticed.map(|fault| fault.to_string())
    };
    let store = "sust.b.1d.b32.trap [%s, {%a}], %w0;";
    let text = problem(&format!("{store} suld.b.1d.v2.b32.trap {{%w1, %w2}}, [%s, {{%c}}];"))
        .expect("it is undefined");
    assert!(text.contains("reads 8 bytes") && text.contains("what the same kernel has written"), "{text}");
    // Other bytes, and a read before the write.
    assert_eq!(problem(&format!("{store} suld.b.1d.b32.trap {{%w1}}, [%s, {{%b}}];")), None);
    assert_eq!(problem(&format!("suld.b.1d.b32.trap {{%w1}}, [%s, {{%a}}]; {store}")), None);
}

#[test]
fn properties_of_a_surface() {
    let query = "suq.width.b32 %w0, [%s]; suq.height.b32 %w1, [%s]; suq.depth.b32 %w2, [%s]; suq.memory_layout.b32 %w3, [%s];";
    assert_eq!(load(Geometry::Volume, [4, 3, 2], query, [0; 3]), [4, 3, 2, 0]);
    let layers = "suq.array_size.b32 %w0, [%s]; txq.width.b32 %w1, [%s];";
    let text = run(Geometry::Planes, [4, 3, 2], layers, [0; 3]).unwrap_err().to_string();
    assert!(text.contains("that of a surface object"), "{text}");
}
