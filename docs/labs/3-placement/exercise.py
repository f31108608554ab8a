from pykubelet.extension import CpuMachine, CpuRequest, Extension


class SpreadCores(Extension):
    name, api = "spread-cores", "1.0"

    def place(self, request: CpuRequest, machine: CpuMachine) -> frozenset[int] | None:
        # machine.cpus: each with id, core, socket, numa_node; machine.free: the ids of those that may be taken; request.cpus: how many
        return frozenset(sorted(machine.free)[: request.cpus])
