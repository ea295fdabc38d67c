//! Compares our structures, enumerations, and constants with those in NVIDIA's headers.

mod declarations;
mod ours;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use virtual_cuda::LAYOUTS;
use virtual_gpu_core::status::{CudaStatus, NcclStatus};
use virtual_gpu_nccl::{CommConfig, DataType, Operator};

use crate::driver;
use crate::report::{Comparison, Report};
use crate::wheel::{self, downloads};
use declarations::Declarations;

/// The package with `cuda.h`, of the CUDA version that the virtual driver reports.
const CUDA: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.9.79");

/// The package with `nccl.h`, of the version that the virtual NCCL reports.
const NCCL: (&str, &str) = ("nvidia-nccl-cu12", "2.30.7");

/// The C parser.
const CLANG: (&str, &str) = ("libclang", "18.1.1");

/// Compares both headers.
pub(crate) fn compare(root: &Path, report: &mut Report) -> anyhow::Result<()> {
    let clang = match wheel::fetch(root, CLANG.0, CLANG.1) {
        Ok(folder) => folder.join("clang/native"),
        Err(why) => {
            report.skip("the headers", &why.context("there is no libclang"));
            return Ok(());
        }
    };
    // SAFETY: this program's other threads have ended.
    unsafe { std::env::set_var("LIBCLANG_PATH", &clang) };
    match wheel::fetch(root, CUDA.0, CUDA.1) {
        Ok(folder) => report.add(cuda(root, &folder.join("nvidia/cuda_runtime/include/cuda.h"))?),
        Err(why) => report.skip("cuda.h", &why),
    }
    match wheel::fetch(root, NCCL.0, NCCL.1) {
        Ok(folder) => report.add(nccl(root, &folder.join("nvidia/nccl/include/nccl.h"))?),
        Err(why) => report.skip("nccl.h", &why),
    }
    Ok(())
}

fn cuda(root: &Path, header: &Path) -> anyhow::Result<Comparison> {
    let header = Declarations::read(header, &[])?;
    let mut comparison = Comparison::new(format!("cuda.h {}", CUDA.1));
    layouts(&mut comparison, &header, "CU");
    statuses(&mut comparison, &header, "CUDA_", |code| Some(CudaStatus::from_value(code)?.c_name()));
    constants(&mut comparison, &header, root, "CU")?;
    bindings(&mut comparison, &header, &driver::cudarc_source(root)?.join("src/driver/sys/mod.rs"))?;
    Ok(comparison)
}

fn nccl(root: &Path, header: &Path) -> anyhow::Result<Comparison> {
    let header = Declarations::read(header, &[stubs(root)?])?;
    let mut comparison = Comparison::new(format!("nccl.h {}", NCCL.1));
    layouts(&mut comparison, &header, "nccl");
    statuses(&mut comparison, &header, "nccl", |code| Some(NcclStatus::from_value(code)?.c_name()));
    constants(&mut comparison, &header, root, "NCCL")?;
    bindings(&mut comparison, &header, &driver::cudarc_source(root)?.join("src/nccl/sys/mod.rs"))?;

    let config = header.structures_like("ncclConfig").context("nccl.h has no ncclConfig_t")?;
    for (field, offset, _) in CommConfig::fields() {
        comparison.same(format!("{config}::{field}"), &header.offset(config, field), &Some(offset));
    }
    comparison.same(format!("the size of {config}"), &header.size(config), &Some(CommConfig::SIZE));
    for value in 0..64 {
        if let Some(name) = DataType::from_value(value).map(DataType::c_name) {
            comparison.same(&name, &header.value(&name), &Some(i64::from(value)));
        }
        if let Some(operator) = Operator::from_value(value) {
            let name = ours::c_name(operator);
            comparison.same(name, &header.value(name), &Some(i64::from(value)));
        }
    }
    Ok(comparison)
}

/// Compares the structures that the virtual library reads.
fn layouts(comparison: &mut Comparison, header: &Declarations, prefix: &str) {
    for layout in LAYOUTS.iter().filter(|layout| layout.name.starts_with(prefix)) {
        let name = layout.name;
        comparison.same(format!("the size of {name}"), &header.size(name), &Some(layout.size));
        for (field, offset) in layout.fields {
            comparison.same(format!("{name}::{field}"), &header.offset(name, field), &Some(*offset));
        }
    }
}

/// Compares the result codes: ours are those of the header, and no others.
fn statuses(
    comparison: &mut Comparison,
    header: &Declarations,
    prefix: &str,
    name_of: impl Fn(u32) -> Option<&'static str>,
) {
    let theirs = header.enumerators(if prefix == "nccl" { "ncclResult_t" } else { "cudaError_enum" });
    for (name, value) in theirs.iter().filter(|(name, _)| *name != "ncclNumResults") {
        let ours = u32::try_from(*value).ok().and_then(&name_of);
        comparison.same(format!("code {value}"), &Some(*name), &ours);
    }
    for code in 0..=1100 {
        if let Some(ours) = name_of(code) {
            let there = theirs.contains(&(ours, i64::from(code)));
            comparison.holds(there, || format!("{ours} = {code}: the header has no such code"));
        }
    }
}

/// Compares the constants in our sources whose comments give their names in C.
fn constants(
    comparison: &mut Comparison,
    header: &Declarations,
    root: &Path,
    prefix: &str,
) -> anyhow::Result<()> {
    let constants = ours::constants(root)?;
    for constant in constants.iter().filter(|constant| constant.c_name.starts_with(prefix)) {
        let ours::Constant { c_name, file, value } = constant;
        comparison.same(format!("{c_name} in {file}"), &header.value(c_name), &Some(*value));
    }
    Ok(())
}

/// Compares the enumerations through which the course calls the library: those of cudarc. It has several versions of an
/// enumeration, one for each version of the library in which they differ.
fn bindings(comparison: &mut Comparison, header: &Declarations, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let bound = ours::enumerators(&text);
    let before = comparison.compared();
    for (name, value) in header.all_enumerators() {
        if let Some(values) = bound.get(name) {
            comparison.holds(values.contains(&value), || {
                format!("{name}: the header has {value}, and cudarc {values:?}")
            });
        }
    }
    ensure!(comparison.compared() > before, "{}: nothing in it is in the header", file.display());
    Ok(())
}

/// Returns a folder with the headers that `nccl.h` includes for the types of streams and half-precision numbers. NVIDIA's
/// own need more of CUDA than its declarations do.
fn stubs(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = downloads(root).join("stubs");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    std::fs::write(
        folder.join("cuda_runtime.h"),
        "#include <stddef.h>\ntypedef struct CUstream_st *cudaStream_t;\n",
    )?;
    std::fs::write(folder.join("cuda_fp16.h"), "")?;
    Ok(folder)
}

/// Returns the folder with the C compiler's own headers, such as `stddef.h`, which libclang's package lacks.
fn compiler_headers() -> anyhow::Result<String> {
    let output = Command::new("cc").arg("-print-file-name=include").output().context("can't run cc")?;
    ensure!(output.status.success(), "cc knows no folder for headers");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
