//! Links the stub library to the virtual driver, which exports NCCL's symbols, too.

mod stub_library;

fn main() {
    stub_library::link_to("libcuda.so");
}
