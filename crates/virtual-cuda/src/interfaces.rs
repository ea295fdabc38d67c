//! The machine's network interfaces.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use virtual_gpu_nccl::Interface;

/// Returns every interface that is up, with each of its IP addresses, in the system's order.
pub(crate) fn all() -> Vec<Interface> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `first` is writable.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the system created the list, which ends with a null pointer.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the entry's name is a C string, and its address is null or belongs to the family that it specifies.
        let (name, address) = unsafe { (CStr::from_ptr(entry.ifa_name), address(entry.ifa_addr)) };
        found.extend(address.map(|address| (name.to_string_lossy().into_owned(), address)));
    }
    // SAFETY: `getifaddrs` created the list above, and nothing refers to it anymore.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `address` is null or points to a complete address of its family.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller promises this.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                // A link-local address means nothing without its interface.
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                (!ip.is_unicast_link_local()).then_some(ip.into())
            }
            _ => None,
        }
    }
}
