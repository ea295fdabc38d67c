//! The attributes of kernels and variables in a module, and the calls that query them.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{CUfunc_cache, CUfunction_attribute_enum as Attribute, CUresult};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, DevicePtr, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use lab::Check;

use crate::device::shape;
use crate::fails;

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("functions::attributes_are_the_kernel_s_own", attributes),
        Check::new("functions::attributes_that_can_be_set", attributes_that_can_be_set),
        Check::new("functions::a_launch_with_too_few_arguments", too_few_arguments),
        Check::new("functions::a_block_that_the_kernel_was_not_made_for", launch_bounds),
        Check::new("functions::variables_of_a_module", variables),
        Check::new("functions::variables_with_the_addresses_of_others", variables_with_addresses),
    ]
}

/// `scale` multiplies by a constant; `follow` reads a variable through another, which has its address; `bounded` has launch bounds, and shared and local memory; `exact` requires one
/// block size.
const KERNELS: &str = r#"
.version 8.0
.target sm_70
.address_size 64

.const .align 4 .f32 factor = 0f40000000;
.const .align 4 .b8 unused[100];
.global .align 4 .b8 table[64];
.global .align 4 .u32 counter = 7;
.global .align 8 .u64 to_counter = counter;
.global .align 4 .u32 behind = 9;
.global .align 8 .u64 to_behind = behind;

.visible .entry scale(.param .u64 out)
{
    .reg .f32 %f<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.f32 %f1, [%rd3];
    ld.const.f32 %f2, [factor];
    mul.f32 %f3, %f1, %f2;
    st.global.f32 [%rd3], %f3;
    ret;
}

.visible .entry follow(.param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out];
    ld.global.u64 %rd2, [to_behind];
    ld.global.u32 %r1, [%rd2];
    st.global.u32 [%rd1], %r1;
    ret;
}

.visible .entry bounded()
.maxntid 128, 1, 1
{
    .local .align 4 .b8 own[24];
    .shared .align 4 .b8 tile[2048];
    .reg .b32 %r<2>;
    mov.u32 %r1, 1;
    st.local.u32 [own], %r1;
    st.shared.u32 [tile], %r1;
    ret;
}

.visible .entry exact()
.reqntid 64, 2, 1
{
    ret;
}
"#;

fn module() -> anyhow::Result<(Arc<CudaStream>, Arc<CudaModule>)> {
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(KERNELS))?;
    Ok((context.default_stream(), module))
}

fn attributes() -> anyhow::Result<()> {
    let (_stream, module) = module()?;
    let (scale, bounded) = (module.load_function("scale")?, module.load_function("bounded")?);
    assert_eq!((scale.max_threads_per_block()?, bounded.max_threads_per_block()?), (1024, 128));
    assert_eq!((scale.shared_size_bytes()?, bounded.shared_size_bytes()?), (0, 2048));
    assert_eq!((scale.const_size_bytes()?, bounded.const_size_bytes()?), (4, 0));
    assert_eq!((scale.local_size_bytes()?, bounded.local_size_bytes()?), (0, 24));
    assert_eq!((scale.num_regs()?, scale.ptx_version()?, scale.binary_version()?), (32, 70, 90));
    let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!((scale.get_attribute(dynamic)?, bounded.get_attribute(dynamic)?), (49_152, 47_104));
    let carveout = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    assert_eq!(scale.get_attribute(carveout)?, -1);
    let unknown = scale.get_attribute(Attribute::CU_FUNC_ATTRIBUTE_MAX);
    fails(unknown, CUresult::CUDA_ERROR_INVALID_VALUE, &["kernel `scale`: 16 is not a function attribute"]);
    Ok(())
}

fn attributes_that_can_be_set() -> anyhow::Result<()> {
    let (_stream, module) = module()?;
    let bounded = module.load_function("bounded")?;
    let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // This is 227 KiB minus the 2 KiB of static shared memory.
    bounded.set_attribute(dynamic, 225 << 10)?;
    assert_eq!(bounded.get_attribute(dynamic)?, 225 << 10);
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let words =
        ["kernel `bounded`", "230401 bytes", "0 to 230400 can be requested, because 2048 bytes are static"];
    fails(bounded.set_attribute(dynamic, (225 << 10) + 1), invalid, &words);
    fails(bounded.set_attribute(dynamic, -1), invalid, &["-1 bytes"]);

    let carveout = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
    bounded.set_attribute(carveout, 50)?;
    assert_eq!(bounded.get_attribute(carveout)?, 50);
    fails(bounded.set_attribute(carveout, 101), invalid, &["101 percent"]);
    let registers = Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS;
    fails(bounded.set_attribute(registers, 8), invalid, &["function attribute 4 can only be read"]);
    let cluster = Attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
    bounded.set_attribute(cluster, 0)?;
    let words = ["-1 is not a value of function attribute 11"];
    fails(bounded.set_attribute(cluster, -1), invalid, &words);
    bounded.set_function_cache_config(CUfunc_cache::CU_FUNC_CACHE_PREFER_L1)?;
    Ok(())
}

fn launch_bounds() -> anyhow::Result<()> {
    let (stream, module) = module()?;
    let (bounded, exact) = (module.load_function("bounded")?, module.load_function("exact")?);
    let block = |block_dim| LaunchConfig { grid_dim: (1, 1, 1), block_dim, shared_mem_bytes: 0 };
    // SAFETY: neither kernel takes arguments or accesses memory outside its own.
    unsafe {
        stream.launch_builder(&bounded).launch(block((128, 1, 1)))?;
        stream.launch_builder(&exact).launch(block((64, 2, 1)))?;
        let words = ["launch of `bounded`: 129 threads in a block: the kernel allows at most 128"];
        let launched = stream.launch_builder(&bounded).launch(block((129, 1, 1)));
        fails(launched, CUresult::CUDA_ERROR_INVALID_VALUE, &words);
        let words = ["launch of `exact`", "the kernel requires 64 x 2 x 1"];
        let launched = stream.launch_builder(&exact).launch(block((128, 1, 1)));
        fails(launched, CUresult::CUDA_ERROR_INVALID_VALUE, &words);
    }
    Ok(stream.synchronize()?)
}

fn variables() -> anyhow::Result<()> {
    let (stream, module) = module()?;
    let scale = module.load_function("scale")?;
    let mut values = stream.clone_htod(&[1f32, 2.0, 3.0])?;
    let shape = shape(1, 3);
    // SAFETY: the argument is the kernel's, with an element for each thread.
    unsafe { stream.launch_builder(&scale).arg(&mut values).launch(shape) }?;
    assert_eq!(stream.clone_dtoh(&values)?, [2.0, 4.0, 6.0]);
    {
        let mut factor = module.get_global("factor", &stream)?;
        stream.memcpy_htod(&10f32.to_ne_bytes(), &mut factor)?;
    }
    // SAFETY: as above.
    unsafe { stream.launch_builder(&scale).arg(&mut values).launch(shape) }?;
    assert_eq!(stream.clone_dtoh(&values)?, [20.0, 40.0, 60.0]);

    let table = module.get_global("table", &stream)?;
    assert_eq!(stream.clone_dtoh(&table)?, [0; 64]);
    let Err(error) = module.get_global("tabel", &stream) else { anyhow::bail!("`tabel` was found") };
    let words = [
        "no variable `tabel`",
        "it has `factor`, `unused`, `table`, `counter`, `to_counter`, `behind`, `to_behind`",
    ];
    fails(Err::<(), _>(error), CUresult::CUDA_ERROR_NOT_FOUND, &words);
    let null = std::ptr::null_mut();
    // SAFETY: nothing is written through null pointers.
    let nothing = unsafe {
        sys::cuModuleGetGlobal_v2(std::ptr::null_mut(), std::ptr::null_mut(), null, c"table".as_ptr())
    };
    fails(nothing.result(), CUresult::CUDA_ERROR_INVALID_VALUE, &["both result pointers are null"]);
    Ok(())
}

fn variables_with_addresses() -> anyhow::Result<()> {
    let (stream, module) = module()?;
    let mut read = stream.alloc_zeros::<u32>(1)?;
    let follow = module.load_function("follow")?;
    // SAFETY: the argument is the kernel's, with an element for its thread.
    unsafe { stream.launch_builder(&follow).arg(&mut read).launch(shape(1, 1)) }?;
    assert_eq!(stream.clone_dtoh(&read)?, [9]);

    // No kernel uses these two, and the first is read before the program asks for the second.
    let pointer = stream.clone_dtoh(&module.get_global("to_counter", &stream)?)?;
    let counter = module.get_global("counter", &stream)?;
    assert_eq!(pointer, counter.device_ptr(&stream).0.to_ne_bytes());
    assert_eq!(stream.clone_dtoh(&counter)?, 7_u32.to_ne_bytes());
    Ok(())
}

/// cudarc passes an array with a pointer for each `arg`. After a forgotten one, a driver reads beyond its end.
fn too_few_arguments() -> anyhow::Result<()> {
    const KERNEL: &str = "
.version 8.0
.target sm_70
.address_size 64
.visible .entry three(.param .u32 a, .param .u64 b, .param .u8 c) { ret; }
.visible .entry one(.param .u32 a) { ret; }";
    let context = CudaContext::new(0)?;
    let module = context.load_module(Ptx::from_src(KERNEL))?;
    let stream = context.new_stream()?;
    let (word, long, byte) = (1_u32, 2_u64, 3_u8);
    let [word, long, byte] = [(&raw const word).cast(), (&raw const long).cast(), (&raw const byte).cast()];
    let nowhere = std::ptr::without_provenance(0x21);
    let launch = |name: &str, arguments: &[*const c_void]| {
        let function = module.load_function(name)?;
        let mut arguments: Vec<*mut c_void> = arguments.iter().map(|argument| argument.cast_mut()).collect();
        let (arguments, null) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the array has as many pointers as the kernel has parameters.
        unsafe {
            sys::cuLaunchKernel(
                function.cu_function(),
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream.cu_stream(),
                arguments,
                null,
            )
            .result()
        }
    };
    launch("three", &[word, long, byte])?;
    let three = "the kernel has 3 parameters, and a launch needs an argument for each";
    let at = "the pointer to argument 2 (counted from 0) is 0x21, where nothing can be read";
    fails(launch("three", &[word, long, nowhere]), CUresult::CUDA_ERROR_INVALID_VALUE, &[at, three]);
    let at = "the pointer to argument 1 (counted from 0) is 0x21, where nothing can be read";
    fails(launch("three", &[word, nowhere, nowhere]), CUresult::CUDA_ERROR_INVALID_VALUE, &[at, three]);
    let at = "the pointer to argument 0 (counted from 0) is null; the kernel has 1 parameter, and";
    fails(launch("one", &[std::ptr::null()]), CUresult::CUDA_ERROR_INVALID_VALUE, &[at]);
    Ok(stream.synchronize()?)
}
