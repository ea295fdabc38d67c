//! Links the stub library to the installed NCCL.

#[path = "../virtual-nccl/stub_library.rs"]
mod stub_library;

fn main() {
    stub_library::link_to("libnccl.so.2");
}
