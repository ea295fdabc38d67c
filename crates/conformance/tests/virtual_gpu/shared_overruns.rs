//! Accesses beyond a block's shared memory. Hardware allocates it in units of 128 bytes, so it notices only an access
//! beyond the last unit.

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, DriverError, PushKernelArg};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::{child, fails};

/// Each thread stores its index in shared memory, which has room for four numbers, and copies it from there to `y`.
const PTX: &str = "\
.version 8.0
.target sm_70
.address_size 64
.visible .entry beyond(.param .u64 y)
{
    .reg .b32 %r<5>;
    .reg .b64 %rd<4>;
    .shared .align 4 .b8 tile[16];
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, tile;
    add.u32 %r3, %r3, %r2;
    st.shared.u32 [%r3], %r1;
    ld.shared.u32 %r4, [%r3];
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r4;
    ret;
}
";

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("shared_overruns::the_course_s_rules_make_it_an_error", error),
        Check::new("shared_overruns::a_warning_is_printed_and_breaks_nothing", warning),
        Check::new("shared_overruns::beyond_what_hardware_has_it_is_always_an_error", far_beyond),
    ]
}

fn run(threads: u32) -> Result<Vec<u32>, DriverError> {
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let function = context.load_module(Ptx::from_src(PTX))?.load_function("beyond")?;
    let mut y = stream.alloc_zeros::<u32>(threads as usize)?;
    let config = shape(1, threads);
    // SAFETY: the buffer has an element for each thread.
    unsafe { stream.launch_builder(&function).arg(&mut y).launch(config)? };
    stream.clone_dtoh(&y)
}

fn error() -> anyhow::Result<()> {
    let words = [
        "kernel `beyond` goes out of bounds",
        "thread (4,0,0) writes 4 bytes at 0x10",
        "the block has 16 bytes of shared memory",
    ];
    fails(run(5), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &words);
    Ok(())
}

/// Goes beyond the shared memory, but not beyond its last unit.
pub(crate) fn goes_beyond() -> anyhow::Result<()> {
    lab::attach(1)?;
    for threads in [4, 5, 32] {
        assert!(run(threads)?.into_iter().eq(0..threads));
    }
    Ok(())
}

/// Goes beyond the last unit.
pub(crate) fn goes_far_beyond() -> anyhow::Result<()> {
    lab::attach(1)?;
    fails(run(33), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, &["thread (32,0,0) writes 4 bytes at 0x80"]);
    Ok(())
}

fn warning() -> anyhow::Result<()> {
    for (checks, reports) in [("warn", 1), ("off", 0)] {
        let (well, said) = child::start("shared_overruns::beyond", &[("VIRTUAL_GPU_CHECKS", checks)])?;
        assert!(well, "{said}");
        assert_eq!(said.matches("kernel `beyond` goes out of bounds").count(), reports, "{said}");
        assert_eq!(said.matches("virtual GPU: ").count(), reports, "{said}");
    }
    Ok(())
}

fn far_beyond() -> anyhow::Result<()> {
    for checks in ["warn", "off"] {
        let (well, said) = child::start("shared_overruns::far_beyond", &[("VIRTUAL_GPU_CHECKS", checks)])?;
        assert!(well, "{said}");
    }
    Ok(())
}
