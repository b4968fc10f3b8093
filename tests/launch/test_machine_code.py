"""Text to machine code, for this machine and for the others that the launcher is written for."""

import llvmlite.binding as llvm
import pytest

from straightline.launch.machine_code import assemble, text_of


def test_addresses_are_those_of_functions_and_variables():
    code = assemble("@word = global i64 5\ndefine i64 @f() {\n  ret i64 3\n}")
    assert code.address("f") != code.address("word")
    with pytest.raises(KeyError, match="nothing"):
        code.address("nothing")


@pytest.mark.parametrize(
    ("machine", "instructions"),
    [
        ("x86_64", ["pause", "ldmxcsr", "stmxcsr", "cmpxchg"]),
        ("aarch64", ["yield", "msr\tFPCR", "mrs\t", "ldaxr"]),
    ],
)
def test_the_pool_is_written_for(machine, instructions):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = f"{machine}-unknown-linux-gnu"
    target = llvm.Target.from_triple(triple).create_target_machine()
    module = llvm.parse_assembly(text_of("pool", machine))
    module.triple, module.data_layout = triple, str(target.target_data)
    module.verify()
    text = target.emit_assembly(module)
    assert [each for each in instructions if each not in text] == []
