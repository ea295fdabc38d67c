//! Links the stub library to the virtual driver, which also exports NCCL's symbols.

mod stub_library;

fn main() {
    stub_library::link_to("libcuda.so");
}
