from flashback.cli.main import main

main()
