//! `tex`, `tld4`, and `txq`: elements that are read through texture objects, and how they are mixed.

use half::f16;
use virtual_gpu_core::array::{Channel, Format, Geometry, Level};
use virtual_gpu_core::texture::{AddressMode, Object, Sampling, Surface, Texture};
use virtual_gpu_machine::{Access, Fault};

use crate::arguments;
use crate::gpu::{Gpu, Plain};

const HANDLE: u64 = 48;

/// Returns a kernel in which each thread has four words in `%a`, `%b`, `%c`, and `%e`, and returns `%w0` to `%w3`.
fn source(body: &str) -> String {
    format!(
        ".version 8.6\n.target sm_90\n.address_size 64\n
        .visible .entry test(.param .u64 t, .param .u64 x, .param .u64 y)
        {{
        .reg .b32 %n, %a, %b, %c, %e, %w<4>; .reg .b16 %h<4>; .reg .b64 %t, %x, %y, %z; .reg .f32 %f<4>;
        ld.param.u64 %t, [t]; ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
        mov.u32 %n, %tid.x; mul.wide.u32 %z, %n, 16; add.u64 %x, %x, %z; add.u64 %y, %y, %z;
        ld.global.v4.b32 {{%a, %b, %c, %e}}, [%x];
        mov.b32 %w0, 0; mov.b32 %w1, 0; mov.b32 %w2, 0; mov.b32 %w3, 0;
        {body}
        st.global.v4.b32 [%y], {{%w0, %w1, %w2, %w3}};
        ret;
        }}"
    )
}

/// Returns the simplest way of reading a texture.
pub(crate) fn sampling() -> Sampling {
    Sampling {
        modes: [AddressMode::Clamp; 3],
        is_linear: false,
        keeps_integers: false,
        is_normalized: false,
        is_srgb: false,
        mixes_levels: false,
        level_bias: 0.0,
        level_range: [0.0, 16.0],
        border: [0.0; 4],
    }
}

/// A texture, and the elements of its levels.
struct Given {
    texture: Texture,
    elements: Vec<u8>,
}

impl Given {
    /// A texture of numbers with one level.
    fn new<T: Plain>(
        geometry: Geometry,
        channel: Channel,
        channels: u8,
        extent: [u64; 3],
        values: &[T],
    ) -> Self {
        let format = Format { channel, channels };
        let levels = vec![Level::packed(0, extent, format.bytes())];
        let texture =
            Texture { geometry, format, levels, sampling: sampling(), is_buffer: false, can_gather: false };
        Self { texture, elements: values.iter().flat_map(|value| value.bytes()).collect() }
    }

    fn floats(geometry: Geometry, extent: [u64; 3]) -> Self {
        let count: u64 = extent.iter().product();
        let values: Vec<f32> = (0..count).map(|at| at as f32).collect();
        Self::new(geometry, Channel::F32, 1, extent, &values)
    }

    fn with(mut self, change: impl FnOnce(&mut Sampling)) -> Self {
        change(&mut self.texture.sampling);
        self
    }

    fn launch(&self, body: &str, words: &[[u32; 4]]) -> Result<Vec<[u32; 4]>, Box<Fault>> {
        let mut gpu = Gpu::new(&source(body)).virtual_alone();
        let base = gpu.buffer(&self.elements);
        let mut texture = self.texture.clone();
        for level in &mut texture.levels {
            level.address += base;
        }
        gpu.objects.insert(HANDLE, Object::Texture(texture));
        let x = gpu.buffer(words.as_flattened());
        let y = gpu.buffer(&vec![0_u32; words.len() * 4]);
        gpu.launch("test", [1; 3], [words.len() as u32, 1, 1], arguments!(HANDLE, x, y))?;
        Ok(gpu.read::<u32>(y).as_chunks().0.to_vec())
    }

    /// Runs a body on these words.
    #[track_caller]
    fn words(&self, body: &str, words: &[[u32; 4]]) -> Vec<[u32; 4]> {
        self.launch(body, words).unwrap_or_else(|fault| panic!("{fault}"))
    }

    /// Reads the first channel at each point.
    #[track_caller]
    fn at(&self, instruction: &str, points: &[[f32; 4]]) -> Vec<f32> {
        let body = format!("{instruction};");
        let words: Vec<_> = points.iter().map(|point| point.map(f32::to_bits)).collect();
        self.words(&body, &words).iter().map(|texel| f32::from_bits(texel[0])).collect()
    }

    /// Returns the text of the fault of one thread.
    #[track_caller]
    fn fault(&self, body: &str) -> String {
        self.launch(body, &[[0; 4]]).expect_err("this fetch has a fault").to_string()
    }
}

const LINE: &str = "tex.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}]";
const PLANE: &str = "tex.2d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b}]";

fn line(points: &[f32]) -> Vec<[f32; 4]> {
    points.iter().map(|&x| [x, 0.0, 0.0, 0.0]).collect()
}

#[test]
fn the_element_that_contains_the_point_is_read() {
    let given = Given::floats(Geometry::Line, [4, 1, 1]);
    assert_eq!(given.at(LINE, &line(&[0.0, 0.9, 1.0, 3.5, 4.0, -7.0])), [0.0, 0.0, 1.0, 3.0, 3.0, 0.0]);
    let given = given.with(|sampling| sampling.is_normalized = true);
    assert_eq!(given.at(LINE, &line(&[0.0, 0.25, 0.74, 1.0])), [0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn points_outside_follow_the_address_mode() {
    let at = |mode: AddressMode, is_normalized| {
        let given = Given::floats(Geometry::Line, [4, 1, 1]).with(|sampling| {
            (sampling.modes[0], sampling.is_normalized, sampling.border) = (mode, is_normalized, [9.0; 4]);
        });
        let scale = if is_normalized { 4.0 } else { 1.0 };
        given.at(LINE, &line(&[-1.5, -0.5, 4.5, 6.5].map(|x| x / scale)))
    };
    assert_eq!(at(AddressMode::Clamp, true), [0.0, 0.0, 3.0, 3.0]);
    assert_eq!(at(AddressMode::Wrap, true), [2.0, 3.0, 0.0, 2.0]);
    assert_eq!(at(AddressMode::Mirror, true), [1.0, 0.0, 3.0, 1.0]);
    assert_eq!(at(AddressMode::Border, true), [9.0; 4]);
    assert_eq!(at(AddressMode::Border, false), [9.0; 4]);
    // Without normalized coordinates, a texture can't repeat.
    assert_eq!(at(AddressMode::Wrap, false), [0.0, 0.0, 3.0, 3.0]);
}

#[test]
fn linear_filtering_mixes_the_nearest_elements() {
    let given = Given::floats(Geometry::Line, [4, 1, 1]).with(|sampling| sampling.is_linear = true);
    // 0.8 is 205/256.
    assert_eq!(given.at(LINE, &line(&[1.5, 2.0, 1.3, 0.2, 3.9])), [1.0, 1.5, 205.0 / 256.0, 0.0, 3.0]);
    let given = Given::floats(Geometry::Plane, [4, 3, 1]).with(|sampling| sampling.is_linear = true);
    assert_eq!(given.at(PLANE, &[[2.0, 1.0, 0.0, 0.0], [1.75, 1.5, 0.0, 0.0]]), [3.5, 5.25]);
    let volume = "tex.3d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}]";
    let given = Given::floats(Geometry::Volume, [2, 2, 2]).with(|sampling| sampling.is_linear = true);
    assert_eq!(given.at(volume, &[[1.0, 1.0, 1.0, 0.0], [0.5, 1.5, 1.25, 0.0]]), [3.5, 5.0]);
    let bordered = Given::floats(Geometry::Line, [4, 1, 1]).with(|sampling| {
        (sampling.is_linear, sampling.modes[0]) = (true, AddressMode::Border);
    });
    assert_eq!(bordered.at(LINE, &line(&[4.0])), [1.5]);
}

#[test]
fn the_bits_of_a_number_that_is_not_mixed_stay_the_same() {
    let values = [f32::from_bits(0x7fa0_0001), f32::from_bits(0x0000_0001), -0.0];
    let given = Given::new(Geometry::Line, Channel::F32, 1, [3, 1, 1], &values);
    let texels = given.words(&format!("{LINE};"), &[0.5_f32, 1.5, 2.5].map(|x| [x.to_bits(), 0, 0, 0]));
    assert_eq!(texels.iter().map(|texel| texel[0]).collect::<Vec<_>>(), [0x7fa0_0001, 1, 1 << 31]);
}

#[test]
fn elements_of_every_format() {
    let plane = |kind: &str| format!("tex.1d.v4.{kind}.f32 {{%w0, %w1, %w2, %w3}}, [%t, {{%a}}];");
    let bytes = [1_u8, 0x80, 0xff, 0x7f];
    let read = |channel, channels, keeps: bool| {
        let given = Given::new(Geometry::Line, channel, channels, [1, 1, 1], &bytes)
            .with(|sampling| sampling.keeps_integers = keeps);
        given.words(&plane(if keeps { "u32" } else { "f32" }), &[[0; 4]])[0]
    };
    let one = 1.0_f32.to_bits();
    assert_eq!(read(Channel::U8, 4, true), [1, 0x80, 0xff, 0x7f]);
    assert_eq!(read(Channel::S8, 4, true), [1, -128_i32 as u32, u32::MAX, 0x7f]);
    assert_eq!(read(Channel::U16, 2, true), [0x8001, 0x7fff, 0, 1]);
    assert_eq!(read(Channel::S32, 1, true), [0x7fff_8001, 0, 0, 1]);
    assert_eq!(read(Channel::U32, 1, false), [0x7fff_8001, 0, 0, 1]);
    let part = |value: f32, of: f32| (value / of).to_bits();
    assert_eq!(read(Channel::U8, 2, false), [part(1.0, 255.0), part(128.0, 255.0), 0, one]);
    assert_eq!(read(Channel::S8, 4, false), [part(1.0, 127.0), part(-1.0, 1.0), part(-1.0, 127.0), one]);
    assert_eq!(read(Channel::S16, 2, false)[1], one);
    let halves = Given::new(Geometry::Line, Channel::F16, 4, [1, 1, 1], &[0x3c00_u16, 0xc000, 0x3800, 0]);
    let words = halves.words(&plane("f32"), &[[0; 4]])[0].map(f32::from_bits);
    assert_eq!(words, [1.0, -2.0, 0.5, 0.0]);
    let pairs = "tex.1d.v2.f16x2.f32 {%w0, %w1}, [%t, {%a}];";
    assert_eq!(halves.words(pairs, &[[0; 4]]), [[0xc000_3c00, 0x3800, 0, 0]]);
    let singles = "tex.1d.v4.f16.f32 {%h0, %h1, %h2, %h3}, [%t, {%a}]; cvt.u32.u16 %w0, %h1;";
    assert_eq!(halves.words(singles, &[[0; 4]])[0][0], f16::from_f32(-2.0).to_bits().into());
}

#[test]
fn a_layer_is_selected_by_its_index() {
    let lines = "tex.a1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b}];";
    let given = Given::floats(Geometry::Lines, [4, 1, 3]);
    let at = |layer, x: f32, y: f32| [layer, x.to_bits(), y.to_bits(), 0];
    let first = |texels: Vec<[u32; 4]>| texels.iter().map(|it| f32::from_bits(it[0])).collect::<Vec<_>>();
    assert_eq!(first(given.words(lines, &[at(2, 1.5, 0.0), at(7, 0.0, 0.0)])), [9.0, 8.0]);
    let planes = "tex.a2d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}];";
    let given = Given::floats(Geometry::Planes, [4, 2, 3]).with(|sampling| sampling.is_linear = true);
    assert_eq!(first(given.words(planes, &[at(1, 1.0, 1.0), at(2, 0.5, 1.5)])), [10.5, 20.0]);
}

#[test]
fn a_direction_selects_a_face_and_a_place_in_it() {
    let cube = "tex.cube.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}]";
    let given = Given::floats(Geometry::Cube, [2, 2, 6]).with(|sampling| sampling.is_normalized = true);
    let directions = [
        [1.0, 0.5, 0.5],
        [-1.0, 0.5, 0.5],
        [0.5, 1.0, 0.5],
        [0.5, -1.0, 0.5],
        [0.5, 0.5, 1.0],
        [0.5, 0.5, -1.0],
    ];
    let points = directions.map(|[x, y, z]: [f32; 3]| [x, y, z, 0.0]);
    assert_eq!(given.at(cube, &points), [0.0, 5.0, 11.0, 13.0, 17.0, 20.0]);
    let cubes = "tex.acube.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}];";
    let given = Given::floats(Geometry::Cubes, [2, 2, 12]).with(|sampling| sampling.is_normalized = true);
    let texels = given.words(cubes, &[[1, 1.0_f32.to_bits(), 0.5_f32.to_bits(), 0.5_f32.to_bits()]]);
    assert_eq!(f32::from_bits(texels[0][0]), 24.0);
}

/// A mipmap of 8, 4, 2, and 1 numbers: 0 to 7, 100 to 103, 200, 201, and 300.
fn mipmap() -> Given {
    let mut given = Given::floats(Geometry::Line, [8, 1, 1]).with(|sampling| sampling.is_normalized = true);
    let mut values: Vec<f32> = (0..8).map(|at| at as f32).collect();
    values.extend([100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 300.0]);
    given.elements = values.iter().flat_map(|value| value.bytes()).collect();
    let level = |first: u64, width| Level::packed(4 * first, [width, 1, 1], 4);
    given.texture.levels = vec![level(0, 8), level(8, 4), level(12, 2), level(14, 1)];
    given
}

#[test]
fn a_level_of_a_mipmap() {
    let level = "tex.level.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}], %b";
    let points = [0.0, 0.4, 0.6, 1.5, 3.0, 9.0].map(|level| [0.5, level, 0.0, 0.0]);
    assert_eq!(mipmap().at(level, &points), [4.0, 4.0, 102.0, 201.0, 300.0, 300.0]);
    let mixed = mipmap().with(|sampling| (sampling.mixes_levels, sampling.level_bias) = (true, 0.5));
    assert_eq!(mixed.at(level, &[[0.5, 0.0, 0.0, 0.0], [0.5, 0.75, 0.0, 0.0]]), [53.0, 126.75]);
    let limited = mipmap().with(|sampling| sampling.level_range = [1.0, 2.0]);
    assert_eq!(limited.at(level, &[[0.5, 0.0, 0.0, 0.0], [0.5, 3.0, 0.0, 0.0]]), [102.0, 201.0]);
    let base = "tex.base.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}]";
    assert_eq!(mipmap().at(base, &points[..1]), [4.0]);
    // A step of 1/4 is two elements of the first level, and one of the second.
    let gradient = "tex.grad.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}], {%b}, {%c}";
    assert_eq!(mipmap().at(gradient, &[[0.5, 0.25, 0.0, 0.0], [0.5, 0.0, 0.5, 0.0]]), [102.0, 201.0]);
}

#[test]
fn four_elements_are_gathered_counterclockwise() {
    let gather = "tld4.g.2d.v4.u32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b}];";
    let values: Vec<u16> = (0..24).collect();
    let mut given = Given::new(Geometry::Plane, Channel::U16, 2, [4, 3, 1], &values)
        .with(|sampling| sampling.keeps_integers = true);
    let points = [[2.0, 1.0], [0.0, 2.9]].map(|[x, y]: [f32; 2]| [x.to_bits(), y.to_bits(), 0, 0]);
    assert!(given.fault(gather).contains("CUDA_ARRAY3D_TEXTURE_GATHER"));
    given.texture.can_gather = true;
    assert_eq!(given.words(gather, &points), [[11, 13, 5, 3], [17, 17, 17, 17]]);
}

#[test]
fn a_buffer_is_read_by_index_and_is_zero_outside() {
    let fetch = "tex.1d.v4.s32.s32 {%w0, %w1, %w2, %w3}, [%t, {%a}];";
    let mut given = Given::new(Geometry::Line, Channel::S32, 1, [3, 1, 1], &[7_i32, -8, 9])
        .with(|sampling| sampling.keeps_integers = true);
    given.texture.is_buffer = true;
    let indices = [1, 2, 3, -1_i32 as u32].map(|index| [index, 0, 0, 0]);
    let found: Vec<_> = given.words(fetch, &indices).iter().map(|texel| texel[0] as i32).collect();
    assert_eq!(found, [-8, 9, 0, 0]);
    assert!(given.fault(&format!("{LINE};")).contains("tex1Dfetch"));
}

#[test]
fn properties_of_a_texture() {
    let query = "txq.width.b32 %w0, [%t]; txq.height.b32 %w1, [%t]; txq.array_size.b32 %w2, [%t];
                 txq.normalized_coords.b32 %w3, [%t];";
    assert_eq!(Given::floats(Geometry::Planes, [4, 2, 3]).words(query, &[[0; 4]]), [[4, 2, 3, 0]]);
    assert_eq!(mipmap().words(query, &[[0; 4]]), [[8, 0, 0, 1]]);
    let levels = "txq.num_mipmap_levels.b32 %w0, [%t]; txq.level.width.b32 %w1, [%t], %a;";
    assert_eq!(mipmap().words(levels, &[[2, 0, 0, 0]])[0][..2], [4, 2]);
    let volume = "txq.depth.b32 %w0, [%t];";
    assert_eq!(Given::floats(Geometry::Volume, [2, 2, 3]).words(volume, &[[0; 4]])[0][0], 3);
}

#[test]
fn fetches_without_a_defined_result_are_faults() {
    let given = Given::floats(Geometry::Line, [4, 1, 1]);
    assert!(given.fault(&format!("{PLANE};")).contains("another kind of texture"));
    assert!(given.fault(&format!("mov.u64 %t, 7; {LINE};")).contains("no texture or surface object"));
    let integers = Given::new(Geometry::Line, Channel::U32, 1, [1, 1, 1], &[1_u32]);
    let halves = "tex.1d.v2.f16x2.f32 {%w0, %w1}, [%t, {%a}];";
    assert!(integers.fault(halves).contains("integers can't be read as .f16"));
}

#[test]
fn what_a_fetch_reads_is_recorded() {
    let mut gpu = Gpu::new(&source(&format!("{LINE};"))).virtual_alone();
    let base = gpu.unwritten(64);
    let x = gpu.buffer(&[5.5_f32, 0.0, 0.0, 0.0]);
    let y = gpu.buffer(&[0_u32; 4]);
    let mut texture = Given::floats(Geometry::Line, [16, 1, 1]).texture;
    texture.levels[0].address = base;
    gpu.objects.insert(HANDLE, Object::Texture(texture));
    let done = gpu.run("test", 1, 1, arguments!(HANDLE, x, y));
    let read = done.touched.iter().find(|touched| touched.base == base).expect("the array was read");
    assert_eq!((read.ranges.first(), read.ranges.len(), read.access), (Some(&(20..24)), 1, Access::Read));
    assert_eq!(gpu.read::<u32>(y)[0], u32::MAX);
    assert!(done.unwritten.expect("nothing wrote the array").to_string().contains("reads 4 bytes"));
    gpu.objects.remove(HANDLE);
    let surface = Surface {
        geometry: Geometry::Line,
        format: Format { channel: Channel::F32, channels: 1 },
        level: Level::packed(base, [16, 1, 1], 4),
    };
    gpu.objects.insert(HANDLE, Object::Surface(surface));
    let fault = gpu.fault("test", 1, 1, arguments!(HANDLE, x, y));
    assert!(fault.to_string().contains("that of a surface object"), "{fault}");
}

#[test]
fn unsupported_forms_are_refused_by_name() {
    for (body, words) in [
        (
            "tex.grad.cube.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}], {%a, %b, %c, %e}, {%a, %b, %c, %e};",
            "tex.grad.cube.v4.f32.f32",
        ),
        ("tex.2dms.v4.s32.s32 {%w0, %w1, %w2, %w3}, [%t, {%a, %b, %c, %e}];", "tex.2dms.v4.s32.s32"),
        ("tex.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}], {%b};", "wrong number of operands"),
        ("tex.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, %x, {%a}];", "a texture with a separate sampler"),
        ("tex.2d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [%t, {%a}];", "wrong number of operands"),
        ("tex.1d.v4.f32.f32 {%w0, %w1, %w2, %w3}, [t, {%a}];", "`t` is not a `.u64` register"),
        ("txq.channel_order.b32 %w0, [%t];", "txq.channel_order.b32"),
        ("suld.p.1d.b32.trap %w0, [%t, {%a}];", "suld.p.1d.b32.trap"),
        ("sured.b.add.1d.u32.trap [%t, {%a}], %w0;", "sured.b.add.1d.u32.trap"),
        ("istypep.texref %p, %t;", "istypep.texref"),
        (".global .texref picture;", "unsupported type `.texref`"),
    ] {
        let error = virtual_gpu_ptx::load(&source(body)).expect_err("this is not supported").to_string();
        assert!(error.contains(words), "{body}: {error}");
    }
}
