//! Compares NVIDIA's driver with the virtual driver, on a machine without a GPU.

mod package;
pub(crate) mod probe;
mod symbols;

pub(crate) use symbols::cudarc_source;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::probe::{Probe, Results};
use crate::report::{Comparison, Report};
use crate::wheel;

/// The runtime library has the texts for codes that are newer than the driver.
const RUNTIME: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.9.79");

/// Functions whose arguments NVIDIA's driver checks before it checks whether it is initialized. The virtual driver
/// checks that first, for all functions. Either is an error of the same program.
const ARGUMENTS_FIRST: [&str; 93] = [
    "cuArray3DGetDescriptor_v2",
    "cuArrayGetDescriptor_v2",
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuCtxGetFlags",
    "cuCtxGetId",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxGetState",
    "cuEventDestroy",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuGraphAddBatchMemOpNode",
    "cuGraphAddDependencies",
    "cuGraphAddEmptyNode",
    "cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode",
    "cuGraphAddHostNode",
    "cuGraphAddNode",
    "cuGraphBatchMemOpNodeGetParams",
    "cuGraphBatchMemOpNodeSetParams",
    "cuGraphDebugDotPrint",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphEventRecordNodeSetEvent",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphEventWaitNodeSetEvent",
    "cuGraphExecBatchMemOpNodeSetParams",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecNodeSetParams",
    "cuGraphHostNodeGetParams",
    "cuGraphHostNodeSetParams",
    "cuGraphInstantiateWithParams",
    "cuGraphKernelNodeGetParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetParams",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphMemFreeNodeGetParams",
    "cuGraphNodeGetEnabled",
    "cuGraphNodeSetEnabled",
    "cuGraphNodeSetParams",
    "cuGraphReleaseUserObject",
    "cuGraphRemoveDependencies",
    "cuGraphRetainUserObject",
    "cuIpcGetEventHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenEventHandle",
    "cuIpcOpenMemHandle_v2",
    "cuKernelGetFunction",
    "cuLaunchHostFunc",
    "cuLaunchKernelEx",
    "cuLibraryGetGlobal",
    "cuLibraryGetKernel",
    "cuLibraryGetManaged",
    "cuLibraryGetModule",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuLinkAddData",
    "cuLinkAddData_v2",
    "cuLinkAddFile",
    "cuLinkAddFile_v2",
    "cuLinkComplete",
    "cuLinkDestroy",
    "cuMemAdvise_v2",
    "cuMemAllocManaged",
    "cuMemHostGetFlags",
    "cuMemPrefetchAsync_v2",
    "cuMipmappedArrayGetLevel",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialClusterSize",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetId",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
    "cuUserObjectRetain",
];

/// The same, only after a failed cuInit.
const FUNCTION_FIRST: [&str; 6] = [
    "cuArrayDestroy",
    "cuLaunchCooperativeKernel",
    "cuLaunchKernel",
    "cuMipmappedArrayDestroy",
    "cuStreamAddCallback",
    "cuStreamCreateWithPriority",
];

/// Functions in which NVIDIA's driver crashes. The virtual driver returns an error.
const CRASHES: [&str; 3] = ["cuGetProcAddress", "cuGetProcAddress_v2", "cuThreadExchangeStreamCaptureMode"];

/// Returns the functions whose result may be another error.
fn may_differ() -> impl Iterator<Item = &'static &'static str> {
    ARGUMENTS_FIRST.iter().chain(&FUNCTION_FIRST).chain(&CRASHES)
}

/// Compares calls and symbols, and runs the course with the driver.
pub(crate) fn compare(root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let folder = match package::fetch(root) {
        Ok(folder) => folder,
        Err(why) => {
            report.skip("NVIDIA's driver", &why);
            return Ok(());
        }
    };
    let driver = folder.join("libcuda.so.1");
    let theirs = Probe::Driver.results(&[&driver], &[]).context("NVIDIA's driver")?;
    let virtual_driver = lab::tier::built_library("libvirtual_cuda.so")?;
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let ours = Probe::Driver.results(&[&virtual_driver], &hidden).context("the virtual driver")?;
    let version: u32 = theirs.get("version").context("the driver has no version")?.parse()?;
    let name = format!("driver for CUDA {}.{}", version / 1000, version % 1000 / 10);

    let mut comparison = Comparison::new(format!("{name}, calls"));
    calls(&mut comparison, &theirs, &ours);
    report.add(comparison);
    let mut comparison = Comparison::new(format!("{name}, symbols"));
    symbols::compare(&mut comparison, root, &driver, version)?;
    report.add(comparison);
    match wheel::fetch(root, RUNTIME.0, RUNTIME.1) {
        Ok(folder) => report.add(newer_texts(&folder, &theirs, &ours)?),
        Err(why) => report.skip("texts for newer codes", &why),
    }
    let mut comparison = Comparison::new(format!("{name}, the course"));
    course(&mut comparison, root, &folder)?;
    report.add(comparison);
    Ok(())
}

/// Compares codes, names, and texts.
fn calls(comparison: &mut Comparison, theirs: &Results, ours: &Results) {
    let nothing = "nothing".to_owned();
    let known = |call: &str| {
        let name = call.split_once("(NULL)")?.0;
        may_differ().find(|known| **known == name)
    };
    let mut differ = BTreeSet::new();
    for (call, their_result) in theirs.iter().filter(|(call, _)| *call != "version") {
        let our_result = ours.get(call).unwrap_or(&nothing);
        match known(call) {
            None => comparison.same(call, their_result, our_result),
            Some(name) if their_result != our_result => {
                let errors = [their_result, our_result].iter().all(|result| *result != "0");
                comparison.holds(errors, || format!("{call}: theirs {their_result}, ours {our_result}"));
                differ.insert(*name);
            }
            Some(_) => {}
        }
    }
    for name in may_differ() {
        comparison.holds(differ.contains(name), || format!("{name} doesn't differ: remove it from the list"));
    }
}

/// Compares the texts for codes that the driver does not know with the runtime library's.
fn newer_texts(folder: &Path, theirs: &Results, ours: &Results) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison::new(format!("runtime {}, texts for newer codes", RUNTIME.1));
    let library = folder.join("nvidia/cuda_runtime/lib/libcudart.so.12");
    let runtime = Probe::Runtime.results(&[&library], &[])?;
    let nothing = "nothing".to_owned();
    let newer = ours.iter().filter(|(call, _)| call.starts_with("cuGetErrorString"));
    for (call, our_text) in newer.filter(|(call, _)| !theirs.contains_key(*call)) {
        let their_text = runtime.get(call).unwrap_or(&nothing);
        // The runtime library has no texts for codes that only the driver returns.
        if their_text != "0, unrecognized error code" {
            comparison.same(call, their_text, our_text);
        }
    }
    Ok(comparison)
}

/// Runs the doctor and the survey with the driver where the loader finds it.
fn course(comparison: &mut Comparison, root: &Path, folder: &Path) -> anyhow::Result<()> {
    const FOUND: &str = "the NVIDIA driver found no GPU (CUDA_ERROR_NO_DEVICE)";
    let folder = folder.to_string_lossy();
    let automatic = [("LD_LIBRARY_PATH", &*folder), ("LAB_TIER", "auto")];
    let real = [("LD_LIBRARY_PATH", &*folder), ("LAB_TIER", "real")];
    let refused = format!("error: LAB_TIER=real: {FOUND}");

    let survey = Probe::Survey.results(&[], &automatic)?;
    let expected = [("driver", FOUND), ("tier for one rank", "virtual"), ("attached", "virtual")];
    let expected: Results = expected.map(|(what, result)| (what.to_owned(), result.to_owned())).into();
    comparison.same("survey", &survey, &expected);
    let survey = Probe::Survey.results(&[], &real)?;
    let expected = [("driver", FOUND), ("tier for one rank", &refused), ("attached", &refused)];
    let expected: Results = expected.map(|(what, result)| (what.to_owned(), result.to_owned())).into();
    comparison.same("survey with LAB_TIER=real", &survey, &expected);

    for (variables, succeeds) in [(automatic, true), (real, false)] {
        let output = doctor(root)?.envs(variables).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let named = text.contains(FOUND);
        comparison.holds(output.status.success() == succeeds && named, || {
            format!("doctor with {}={}: {}\n{text}", variables[1].0, variables[1].1, output.status)
        });
    }
    Ok(())
}

/// Returns the command that examines this machine.
fn doctor(root: &Path) -> anyhow::Result<Command> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "course"])
        .current_dir(root)
        .status()
        .context("can't run cargo")?;
    ensure!(built.success(), "the course can't be built");
    let program = std::env::current_exe()?.with_file_name("course");
    let mut command = Command::new(program);
    command.arg("doctor").current_dir(root);
    Ok(command)
}
