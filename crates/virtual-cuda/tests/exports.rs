//! The exported functions against cudarc's declarations of them: names, number and sizes of parameters.

/// A C function's parameters, each with its size in bytes.
trait Parameters {
    fn sizes(&self) -> Vec<usize>;
}

macro_rules! parameters {
    ($($parameter:ident)*) => {
        impl<R, $($parameter),*> Parameters for unsafe fn($($parameter),*) -> R {
            fn sizes(&self) -> Vec<usize> {
                vec![$(size_of::<$parameter>()),*]
            }
        }

        impl<R, $($parameter),*> Parameters for unsafe extern "C" fn($($parameter),*) -> R {
            fn sizes(&self) -> Vec<usize> {
                vec![$(size_of::<$parameter>()),*]
            }
        }
    };
}

parameters!();
parameters!(A);
parameters!(A B);
parameters!(A B C);
parameters!(A B C D);
parameters!(A B C D E);
parameters!(A B C D E F);
parameters!(A B C D E F G);
parameters!(A B C D E F G H);
parameters!(A B C D E F G H I J);
parameters!(A B C D E F G H I J K);

macro_rules! compare {
    (
        cuda { $(fn $cuda:ident($($cuda_arg:ident: $cuda_type:ty),*) = $cuda_to:path;)* }
        nccl { $(fn $nccl:ident($($nccl_arg:ident: $nccl_type:ty),*) = $nccl_to:path;)* }
        unsupported cuda { $($no_cuda:ident)* }
        unsupported nccl { $($no_nccl:ident)* }
    ) => {
        $(
            let ours = virtual_cuda::$cuda as unsafe extern "C" fn($(compare!(any $cuda_arg)),*) -> _;
            let theirs = cudarc::driver::sys::$cuda as unsafe fn($(compare!(any $cuda_arg)),*) -> _;
            assert_eq!(ours.sizes(), theirs.sizes(), stringify!($cuda));
        )*
        $(
            let ours = virtual_cuda::$nccl as unsafe extern "C" fn($(compare!(any $nccl_arg)),*) -> _;
            let theirs = cudarc::nccl::sys::$nccl as unsafe fn($(compare!(any $nccl_arg)),*) -> _;
            assert_eq!(ours.sizes(), theirs.sizes(), stringify!($nccl));
        )*
    };
    (any $name:ident) => { _ };
}

#[test]
fn every_function_has_the_parameters_that_cudarc_gives_it() {
    virtual_cuda::exports!(compare);
}

#[test]
fn structures_are_laid_out_as_cudarc_s() {
    use cudarc::driver::sys::{
        CUctxCreateParams, CUexecAffinityParam, CUlaunchAttribute, CUlaunchConfig, CUmemPoolProps,
    };
    assert_eq!(size_of::<virtual_cuda::PoolProperties>(), size_of::<CUmemPoolProps>());
    assert_eq!(size_of::<virtual_cuda::Affinity>(), size_of::<CUexecAffinityParam>());
    assert_eq!(size_of::<virtual_cuda::CreateParameters>(), size_of::<CUctxCreateParams>());
    assert_eq!(size_of::<virtual_cuda::LaunchConfig>(), size_of::<CUlaunchConfig>());
    assert_eq!(size_of::<virtual_cuda::LaunchAttribute>(), size_of::<CUlaunchAttribute>());
}

#[test]
fn no_symbol_is_listed_twice() {
    let mut names: Vec<_> = virtual_cuda::EXPORTS.iter().map(|export| export.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(virtual_cuda::EXPORTS.iter().any(|export| export.parameters.is_none()));
}

#[test]
fn the_device_attributes_have_cudarc_s_numbers() {
    use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;
    let attribute = |attribute: Attribute| virtual_gpu::device::attribute(attribute as i32, 2).unwrap();
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z), 64);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y), 65_535);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID), 3);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 9);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED), 1);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 227 << 10);
    assert_eq!(virtual_gpu::device::attribute(999, 0), None);
}
